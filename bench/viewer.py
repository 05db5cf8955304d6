"""Latency of `dojang view` over a run of a million rollouts, beside one of ten thousand.

Makes both runs (tests/synthetic_run.py), serves each in a separate process, and asks as the page does. Each request
is different from the one before, so that no reply comes out of a cache; the two servers are asked in turn.
"""

import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from machine import Row, arguments, report

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from synthetic_run import NEEDLE, make_run

SMALL, LARGE = 10_000, 1_000_000
ROUNDS = 15
Params = dict[str, str | int | float]
NUMBERS = itertools.count()


@dataclass
class Server:
    """A viewer over one run."""

    process: "subprocess.Popen[str]"
    client: httpx.Client
    indexed_s: float = 0.0

    def ask(self, path: str, params: Params) -> httpx.Response:
        return self.client.get(f"/api/runs/run/{path}", params=params).raise_for_status()

    def peak_mb(self) -> float:
        """Peak of the resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@contextmanager
def serve(run: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "dojang", "view", "--no-browser", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found, "the viewer did not start"
            with httpx.Client(base_url=found[0], timeout=120) as client:
                server = Server(process, client)
                server.indexed_s = wait_for_index(server)
                yield server
        finally:
            process.terminate()
            process.wait()


def wait_for_index(server: Server) -> float:
    started = time.perf_counter()
    while True:
        indexed = server.ask("rollouts", {"limit": 1}).json()["indexed"]
        if indexed["files"] == indexed["of"]:
            return time.perf_counter() - started
        time.sleep(0.05)


def different() -> float:
    """A number that no request had before, between 0 and 0.001."""
    return (next(NUMBERS) % 10_000) / 10**7


CASES: dict[str, tuple[str, Callable[[], Params]]] = {
    "page of samples": ("rollouts", lambda: {"offset": next(NUMBERS) % 5_000}),
    "sort by reward": ("rollouts", lambda: {"sort": "-reward", "offset": next(NUMBERS) % 5_000}),
    "sort by problem": ("rollouts", lambda: {"sort": "problem", "offset": next(NUMBERS) % 5_000}),
    "filter by outcome and reward, sorted": (
        "rollouts",
        lambda: {"outcome": "wrong", "min_reward": 0.3 + different(), "sort": "-advantage"},
    ),
    "filter by problem": (
        "rollouts",
        lambda: {"problem": f"problem/{next(NUMBERS) % 100 * 7919 % 5000:06d}", "limit": 8},
    ),
    "problems": ("problems", lambda: {"sort": "-accepted", "offset": next(NUMBERS) % 500}),
    "one problem": ("problem", lambda: {"id": f"problem/{next(NUMBERS) % 100 * 7919 % 5000:06d}"}),
    "one sample": ("rollout", lambda: {"step": 1, "prompt_index": next(NUMBERS) % 60, "index": 1}),
}


def compare(name: str, small: Server, large: Server) -> Row:
    path, make = CASES[name]
    taken: tuple[list[float], list[float]] = [], []
    for turn in range(ROUNDS + 1):
        for server, times in zip((small, large), taken, strict=True):
            params = make()
            started = time.perf_counter()
            server.ask(path, params)
            if turn:  # the first one computes an order, or sums, that the others share
                times.append(time.perf_counter() - started)
    less, more = (statistics.median(times) * 1000 for times in taken)
    return Row(name, f"{LARGE:,} rollouts", f"{SMALL:,} rollouts", more, less, "ms", less / more)


def first_matches(server: Server) -> float:
    """Seconds until a search for a rare word shows a first match."""
    started = time.perf_counter()
    params: Params = {"q": NEEDLE, "limit": 100}
    while not server.ask("rollouts", params).json()["total"]:
        pass
    return time.perf_counter() - started


def main() -> None:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="keep the runs in this folder, for another time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-viewer-") as temporary:
        folder = options.folder or Path(temporary)
        runs = [folder / str(count) / "run" for count in (SMALL, LARGE)]
        for run, count in zip(runs, (SMALL, LARGE), strict=True):
            if not run.exists():
                make_run(run, count)
        with serve(runs[0]) as small, serve(runs[1]) as large:
            rows = [compare(name, small, large) for name in CASES]
            sizes = f"{LARGE:,} rollouts", f"{SMALL:,} rollouts"
            less, more = first_matches(small), first_matches(large)
            rows.append(Row("search, first matches", *sizes, more * 1000, less * 1000, "ms", less / more))
            less, more = small.indexed_s, large.indexed_s
            rows.append(Row("indexing", *sizes, more, less, "s", None, "in the background, newest steps first"))
            rows.append(Row("peak memory of the server", *sizes, large.peak_mb(), small.peak_mb(), "MiB", None))
    report("viewer", rows, options.json)


if __name__ == "__main__":
    main()
