"""What trackers outside of a run are told, and that nobody waits for them."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dojang.core.run_dir import RunDir
from dojang.track import exporter
from dojang.track.exporter import Couriers, Row


class Notebook:
    """A Sink that can be down, or hang."""

    name = "notebook"
    address = "a shelf"

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.seen: dict[int, set[float]] = {}
        self.down = False
        self.open = threading.Event()
        self.open.set()
        self.ended: list[str] = []
        self.begun: list[dict[str, Any]] = []

    def begin(self, memory: dict[str, Any], keep: Callable[[], None]) -> None:
        self._try()
        self.begun.append(dict(memory))
        memory["lives"] = memory.get("lives", 0) + 1
        keep()

    def tell(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.seen.setdefault(row.step, set()).add(row.seen)
        self._try()
        self.steps += [row.step for row in rows]

    def end(self, status: str) -> str:
        self._try()
        self.ended.append(status)
        return "thank you"

    def close(self) -> None:
        return None

    def _try(self) -> None:
        self.open.wait(30)
        if self.down:
            raise ConnectionError("nobody at\nhome")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_S", "FIRST_RETRY_S", "LONGEST_RETRY_S", "LAST_RETRY_S"):
        monkeypatch.setattr(exporter, name, 0.01)


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def send(directory: RunDir, said: list[str]) -> Iterator[Callable[..., Couriers]]:
    made: list[Couriers] = []

    def make(sink: Notebook, timeout_s: float = 20.0) -> Couriers:
        made.append(Couriers([sink], directory, said.append, "dojang track HERE", timeout_s))
        made[-1].start()
        return made[-1]

    yield make
    for couriers in made:
        couriers.close()


def write(directory: RunDir, *steps: int) -> None:
    with directory.metrics.open("a") as file:
        file.writelines(json.dumps({"step": step, "reward": step / 10}) + "\n" for step in steps)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_all_is_told_in_order_while_the_run_goes_on(directory: RunDir, said: list[str], send) -> None:
    notebook = Notebook()
    couriers = send(notebook)
    write(directory, 0, 1)
    until(lambda: notebook.steps == [0, 1])
    write(directory, *range(2, 350))
    assert couriers.finish("finished")
    assert notebook.steps == list(range(350))
    assert notebook.ended == ["finished"]
    assert said == ["notebook: thank you"]


def test_half_a_line_waits_for_its_other_half(directory: RunDir, send) -> None:
    notebook = Notebook()
    send(notebook)
    directory.metrics.write_text('{"step": 1}\n{"ste')
    until(lambda: notebook.steps == [1])
    time.sleep(0.05)
    with directory.metrics.open("a") as file:
        file.write('p": 2}\n')
    until(lambda: notebook.steps == [1, 2])


def test_a_tracker_that_comes_back_is_told_what_it_missed(directory: RunDir, said: list[str], send) -> None:
    notebook = Notebook()
    couriers = send(notebook)
    write(directory, 1)
    until(lambda: notebook.steps == [1])
    notebook.down = True
    write(directory, 2)
    until(lambda: said)
    write(directory, 3)
    notebook.down = False
    until(lambda: notebook.steps == [1, 2, 3])
    assert couriers.finish("finished")
    assert notebook.steps == [1, 2, 3]
    assert said[0].startswith("notebook: ConnectionError: nobody at home; the run goes on")
    assert said[1] == "notebook: is back, and has been told all it had missed"
    assert len(notebook.seen[2]) == 1, "every attempt must look the same, or a server may count it twice"


@pytest.mark.parametrize("trouble", ["down", "hangs"])
def test_what_was_not_delivered_is_said_and_delivered_later(
    directory: RunDir, said: list[str], send, trouble: str
) -> None:
    notebook = Notebook()
    couriers = send(notebook, timeout_s=0.1)
    write(directory, 1)
    until(lambda: notebook.steps == [1])
    notebook.down = trouble == "down"
    if trouble == "hangs":
        notebook.open.clear()
    write(directory, 2, 3)
    started = time.monotonic()
    assert not couriers.finish("finished")
    assert time.monotonic() - started < 5
    couriers.close()
    assert "notebook: 2 lines of metrics" in said[-1]
    assert "dojang track HERE" in said[-1]
    notebook.open.set()
    another = Notebook()
    assert send(another).finish("finished")
    assert another.steps == [2, 3]
    assert another.begun == [{"lives": 1}], "what it remembers comes back"


def test_steps_that_are_done_again_are_told_again(directory: RunDir, send) -> None:
    notebook = Notebook()
    write(directory, 1, 2, 3)
    assert send(notebook).finish("interrupted")
    directory.rewind(1, {"": 0})
    resumed = send(notebook)
    resumed.close()  # killed before it had anything to tell
    write(directory, 2, 3, 4)
    assert send(notebook).finish("finished")
    assert notebook.steps == [1, 2, 3, 2, 3, 4]


def test_a_tracker_elsewhere_is_told_from_the_beginning(directory: RunDir, send) -> None:
    write(directory, 1, 2)
    assert send(Notebook()).finish("finished")
    another = Notebook()
    another.address = "another shelf"
    assert send(another).finish("finished")
    assert another.steps == [1, 2]
    assert another.begun == [{}]


def test_nobody_waits_long_for_the_trackers_of_a_run_that_was_stopped(
    directory: RunDir, said: list[str], send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "HURRY_S", 0.1)
    notebook = Notebook()
    notebook.down = True
    couriers = send(notebook, timeout_s=600.0)
    assert not couriers.finish("interrupted", hurry=True)
    assert "the end of the run was not delivered (ConnectionError" in said[-1]
