"""Exporter threads: order, retry, resume, and that the run does not wait for them."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dojang.core.run_dir import RunDir
from dojang.track import exporter
from dojang.track.exporter import Exporters, Row, Sink


class Notebook(Sink):
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

    def start(self, state: dict[str, Any], save_state: Callable[[], None]) -> None:
        self._try()
        self.begun.append(dict(state))
        state["lives"] = state.get("lives", 0) + 1
        save_state()

    def write_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.seen.setdefault(row.step, set()).add(row.read_at)
        self._try()
        self.steps += [row.step for row in rows]

    def finish(self, status: str) -> str:
        self._try()
        self.ended.append(status)
        return "thank you"

    def _try(self) -> None:
        self.open.wait(30)
        if self.down:
            raise ConnectionError("connection\nrefused")


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
def send(directory: RunDir, said: list[str]) -> Iterator[Callable[..., Exporters]]:
    made: list[Exporters] = []

    def make(sink: Notebook, timeout_s: float = 20.0) -> Exporters:
        made.append(Exporters([sink], directory, said.append, "dojang track HERE", timeout_s))
        made[-1].start()
        return made[-1]

    yield make
    for exporters in made:
        exporters.close()


def write(directory: RunDir, *steps: int) -> None:
    with directory.metrics.open("a") as file:
        file.writelines(json.dumps({"step": step, "reward": step / 10}) + "\n" for step in steps)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_rows_are_exported_in_order_during_the_run(directory: RunDir, said: list[str], send) -> None:
    notebook = Notebook()
    exporters = send(notebook)
    write(directory, 0, 1)
    until(lambda: notebook.steps == [0, 1])
    write(directory, *range(2, 350))
    assert exporters.finish("finished")
    assert notebook.steps == list(range(350))
    assert notebook.ended == ["finished"]
    assert said == ["notebook: thank you"]


def test_incomplete_line_is_exported_when_complete(directory: RunDir, send) -> None:
    notebook = Notebook()
    send(notebook)
    directory.metrics.write_text('{"step": 1}\n{"ste')
    until(lambda: notebook.steps == [1])
    time.sleep(0.05)
    with directory.metrics.open("a") as file:
        file.write('p": 2}\n')
    until(lambda: notebook.steps == [1, 2])


def test_missed_rows_are_exported_after_an_outage(directory: RunDir, said: list[str], send) -> None:
    notebook = Notebook()
    exporters = send(notebook)
    write(directory, 1)
    until(lambda: notebook.steps == [1])
    notebook.down = True
    write(directory, 2)
    until(lambda: said)
    write(directory, 3)
    notebook.down = False
    until(lambda: notebook.steps == [1, 2, 3])
    assert exporters.finish("finished")
    assert notebook.steps == [1, 2, 3]
    assert said[0].startswith("notebook: ConnectionError: connection refused; the run continues")
    assert said[1] == "notebook: reconnected, all missed rows delivered"
    assert len(notebook.seen[2]) == 1, "every attempt must look the same, or a server may count it twice"


@pytest.mark.parametrize("trouble", ["down", "hangs"])
def test_undelivered_rows_are_reported_and_delivered_later(
    directory: RunDir, said: list[str], send, trouble: str
) -> None:
    notebook = Notebook()
    exporters = send(notebook, timeout_s=0.1)
    write(directory, 1)
    until(lambda: notebook.steps == [1])
    notebook.down = trouble == "down"
    if trouble == "hangs":
        notebook.open.clear()
    write(directory, 2, 3)
    started = time.monotonic()
    assert not exporters.finish("finished")
    assert time.monotonic() - started < 5
    exporters.close()
    assert "notebook: 2 lines of metrics" in said[-1]
    assert "dojang track HERE" in said[-1]
    notebook.open.set()
    another = Notebook()
    assert send(another).finish("finished")
    assert another.steps == [2, 3]
    assert another.begun == [{"lives": 1}], "what it remembers comes back"


def test_steps_repeated_by_a_resume_are_exported_again(directory: RunDir, send) -> None:
    notebook = Notebook()
    write(directory, 1, 2, 3)
    assert send(notebook).finish("interrupted")
    directory.rewind(1, {"": 0})
    resumed = send(notebook)
    resumed.close()  # killed before it had anything to tell
    write(directory, 2, 3, 4)
    assert send(notebook).finish("finished")
    assert notebook.steps == [1, 2, 3, 2, 3, 4]


def test_new_address_gets_all_rows(directory: RunDir, send) -> None:
    write(directory, 1, 2)
    assert send(Notebook()).finish("finished")
    another = Notebook()
    another.address = "another shelf"
    assert send(another).finish("finished")
    assert another.steps == [1, 2]
    assert another.begun == [{}]


def test_interrupted_run_waits_briefly_for_exporters(
    directory: RunDir, said: list[str], send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "HURRY_S", 0.1)
    notebook = Notebook()
    notebook.down = True
    exporters = send(notebook, timeout_s=600.0)
    assert not exporters.finish("interrupted", hurry=True)
    assert "the end of the run was not delivered (ConnectionError" in said[-1]
