"""Commands forked from a server end, print and take signals as new processes do."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import commands

TESTS = Path(__file__).parents[1]
PROGRAM = """
import os, signal, sys, time
print(sys.argv[1:], os.getcwd(), os.environ.get("GREETING"), os.getpgrp() == os.getpid(), flush=True)
print(sys.stdin.read(), file=sys.stderr)
if "other" in sys.argv:
    import other
    print(sys.argv, __name__, __file__, sys.path[:2], other, sys.modules["__main__"].__dict__ is globals())
if "loaded" in sys.argv:
    print("torch:", "torch" in sys.modules)
if "wait" in sys.argv:
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, "-m", "program"]


@pytest.mark.parametrize("own_session", [True, False])
@pytest.mark.parametrize("program", [["-m", "program"], ["FOLDER/program.py"]])
def test_a_command_is_like_a_new_process(program: list[str], tmp_path: Path, own_session: bool) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "other.py").touch()
    command = [sys.executable, *(each.replace("FOLDER", str(tmp_path)) for each in program)]
    path = os.pathsep.join([str(tmp_path / "beside"), os.environ.get("PYTHONPATH", "")])
    settings = {
        "cwd": tmp_path,
        "env": os.environ | {"GREETING": "hello", "PYTHONPATH": path},
        "start_new_session": own_session,
    }
    forked, started = (
        run([*command, "7", "other"], input="typed", capture_output=True, text=True, timeout=60, **settings)
        for run in (commands.run, subprocess.run)
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)
    assert (forked.returncode, forked.stderr) == (7, "typed\n")


ENDING = """
import atexit, sys, threading, time
atexit.register(print, "registered")
threading.Thread(target=lambda: (time.sleep(0.2), print("the thread"))).start()
print("printed", end="")
print("complaint", end="", file=sys.stderr)
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "sys.exit(-1)", "sys.exit('why')", "1 / 0"])
def test_a_command_ends_as_a_new_process_does(end: str, tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text(ENDING + end + "\n")
    settings = {"cwd": tmp_path, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 60}
    forked, started = (run([sys.executable, "ending.py"], **settings) for run in (commands.run, subprocess.run))
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stdout == "printedthe thread\nregistered\n"
    # Where a program fails, the traceback of a forked one begins with the lines of the server.
    assert forked.stderr.startswith("complaint")
    last = [each.stderr.rpartition("\n  File")[2].splitlines()[1:] for each in (forked, started)]
    assert last[0] == last[1]


def test_a_command_takes_signals(command: list[str], tmp_path: Path) -> None:
    process = commands.Popen([*command, "0", "wait"], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout.readline().startswith(b"['0', 'wait']")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_a_command_that_takes_too_long_is_killed(command: list[str], tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        commands.run([*command, "0", "wait"], cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=0.5, capture_output=True)


@pytest.mark.parametrize(("threads", "forked"), [(os.environ["OMP_NUM_THREADS"], True), ("3", False)])
def test_variables_read_at_import_need_a_new_process(
    command: list[str], tmp_path: Path, threads: str, forked: bool
) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    options = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    told = commands.run([*command, "0", "loaded"], check=True, **options).stdout.splitlines()
    assert told[-1] == f"torch: {forked}"


def test_the_server_ends_when_the_tests_are_killed() -> None:
    code = f"""
        import sys, time
        sys.path.insert(0, {str(TESTS)!r})
        import commands
        commands.MODULES = ()
        commands.run([sys.executable, "-m", "this"], capture_output=True)
        print(commands._server._process.pid, flush=True)
        time.sleep(600)
    """
    tests = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    with tests:
        server = int(tests.stdout.readline())
        tests.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{server}").exists():
        assert time.monotonic() < deadline, "the server is still there"
        time.sleep(0.01)


ORPHANED = """
import commands, os, signal, subprocess, sys
commands.MODULES = ()
hung_up = []
signal.signal(signal.SIGHUP, lambda *_: hung_up.append(True))
with subprocess.Popen(["sleep", "600"]) as stopped:
    os.kill(stopped.pid, signal.SIGSTOP)
    os.waitpid(stopped.pid, os.WUNTRACED)
    for _ in range(20):
        commands.run([sys.executable, "-m", "program", "0"], stdin=subprocess.DEVNULL, capture_output=True)
    stopped.kill()
print(len(hung_up))
"""


@pytest.mark.usefixtures("command")
def test_a_new_command_does_not_hang_up_a_group_with_a_stopped_process(tmp_path: Path) -> None:
    """The kernel sends SIGHUP to a process group without a shell that has a stopped member when a process outside, of
    the same session, leaves a child in it."""
    script = tmp_path / "orphaned.py"
    script.write_text(ORPHANED)
    path = os.pathsep.join([str(tmp_path), str(TESTS), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        start_new_session=True,
    )
    assert found.stdout == "0\n", found.stderr
