"""Ctrl-C while a command starts: exit code 130, no traceback, no process left."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

TRAIN = ("train", "quickstart", "steps=3")
INSTALLED = b"dojang.core.interrupt"
"""Python prints the name of a module after its import; the handler is installed before the next one."""


def interrupted(arguments: Sequence[str], delay: float, folder: Path) -> tuple[int, str, str]:
    """Exit code and output of a command that gets SIGINT `delay` seconds after its handler is installed."""
    command = [sys.executable, "-X", "importtime", "-m", "dojang", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder) as process:
        assert process.stderr is not None
        while INSTALLED not in (line := process.stderr.readline()):
            assert line, "it ended before it began"
        process.stderr.readline()  # the next import is done: the handler is installed
        threading.Timer(delay, process.send_signal, [signal.SIGINT]).start()
        output, errors = process.communicate(timeout=120)
    said = [line for line in errors.decode().splitlines() if not line.startswith("import time:")]
    return process.returncode, output.decode(), "\n".join(said)


@pytest.mark.parametrize(
    ("arguments", "delays"),
    [
        (TRAIN, (0.02, 0.1, 0.25, 0.5, 1.0, 2.0, 3.5)),
        (("eval", "dojang-tiny", "--data", "arithmetic", "--samples", "64"), (0.02, 0.6, 1.5)),
        (("judge", "selftest"), (0.02, 0.3)),
    ],
    ids=["train", "eval", "judge"],
)
@pytest.mark.slow
def test_ctrl_c_at_any_moment_of_the_start(arguments: Sequence[str], delays: Sequence[float], tmp_path: Path) -> None:
    for delay in delays:
        code, output, errors = interrupted(arguments, delay, tmp_path)
        # -SIGINT: the signal came while Python was ending. A shell shows 130 for both.
        assert code in (130, -signal.SIGINT), f"after {delay} s: {output}{errors}"
        assert "Traceback" not in output + errors


def test_ctrl_c_during_start_exits_130_without_traceback(tmp_path: Path) -> None:
    code, _, errors = interrupted(TRAIN, 0.02, tmp_path)
    assert (code, errors) == (130, "dojang: interrupted")
    assert list(tmp_path.iterdir()) == []


def run_python(code: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_child_ends_with_a_process_that_is_interrupted() -> None:
    code = (
        "from dojang.core import interrupt; from dojang.core.child_process import run_child; interrupt.install(); "
        "run_child(['sh', '-c', 'sleep 60 & wait'])"
    )
    with run_python(code) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 60
        while not (found := children.read_text().split()) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    time.sleep(0.1)
    states = subprocess.run(["ps", "-o", "stat=", "--pgroup", found[0]], capture_output=True, text=True).stdout.split()
    assert [state for state in states if not state.startswith("Z")] == []  # a zombie may have no parent to reap it


def test_an_ignored_sigint_stays_ignored() -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from dojang.core import interrupt; interrupt.install(); signal.raise_signal(signal.SIGINT); print('goes on')"
    )
    with run_python(code) as process:
        assert process.communicate(timeout=60)[0] == "goes on\n"


def test_scripts_and_notebooks_keep_keyboard_interrupt() -> None:
    """In a subprocess: where a command has installed the handler, SIGINT would end the tests."""
    code = (
        "import signal; from dojang.core import interrupt\n"
        "try:\n    with interrupt.exit_at_once():\n        signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    print('kept')"
    )
    with run_python(code) as process:
        assert process.communicate(timeout=60)[0] == "kept\n"
