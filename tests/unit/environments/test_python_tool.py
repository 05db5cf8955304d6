"""Python as a tool: real sandboxed sessions. Mistakes of the code are told; failures of the sandbox are no rewards."""

import os
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.environments import python_tool
from dojang.environments.python_tool import PythonToolConfig
from dojang.judge.host_capabilities import HostCapabilities
from dojang.judge.python_session import PythonSession, session_host
from dojang.judge.worker_handle import WorkerFailed
from dojang.programs import Limits
from dojang.types import Outcome, Problem
from scripted_episodes import LastWordTask, counts, play, tool_call


@pytest.fixture(scope="module")
def host() -> HostCapabilities:
    return session_host("auto", "", ())


@pytest.fixture(scope="module")
def session(host: HostCapabilities) -> Iterator[PythonSession]:
    made = PythonSession(host, Limits(cpu_s=1.0, wall_s=1.0, memory_mb=200))
    yield made
    made.close()


@pytest.mark.parametrize("isolation", ["namespaces", "landlock", "seccomp"])
def test_every_isolation_keeps_variables_and_hides_files(isolation: str) -> None:
    host = session_host(isolation, "", ())
    if host.features[isolation]:
        pytest.skip(f"this machine has no {isolation}: {host.features[isolation]}")
    session = PythonSession(host, Limits(cpu_s=2.0, memory_mb=200))
    try:
        session.run("import statistics\nx = statistics.mean([1, 2])")
        assert session.run("x").text == "1.5\n"
        assert "Error" in session.run("open('/etc/passwd').read()").text
    finally:
        session.close()


def test_variables_and_files_are_kept(session: PythonSession) -> None:
    assert session.run("x = 3\nprint('hi')").text == "hi\n"
    assert session.run("x + 1").text == "4\n"
    assert session.run("open('notes', 'w').write('kept')\nNone").text == ""
    assert session.run("open('notes').read()").text == "'kept'\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", 'File "<cell N>", line 1, in <module>'),
        ("1 / 0", "ZeroDivisionError"),
        ("print(", "SyntaxError: '(' was never closed"),
        ("exit(3)", "SystemExit: 3"),
        ("input()", "EOFError"),
        ("open('/etc/passwd')", "Error"),
        ("import subprocess; subprocess.run(['ls'])", "Error"),
        ("import socket; socket.create_connection(('127.0.0.1', 1), timeout=1)", "Error"),
        ("import dojang", "ModuleNotFoundError"),
        ("import os; os.write(1, b'noise')", "5"),
    ],
)
def test_mistakes_are_told_and_variables_kept(session: PythonSession, code: str, said: str) -> None:
    session.run("kept = 'kept'")
    found = session.run(code)
    number = found.text.partition("<cell ")[2].partition(">")[0]
    assert said.replace("N", number) in found.text if "<cell N>" in said else said in found.text
    assert "session_driver" not in found.text
    assert session.run("kept").text == "'kept'\n"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("while True: pass", "1 s of CPU time"),
        ("import time; time.sleep(60)", "waited for more than 1 s"),
        ("len('x' * 10**9)", "more than 200 MB"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("import os; os.write(4, b'\\xff' * 4); [os.write(n, b'\\xff' * 4) for n in range(3, 8)]", "it "),
    ],
)
def test_limits_and_crashes_restart_the_interpreter(session: PythonSession, code: str, reason: str) -> None:
    session.run("lost = 1")
    found = session.run(code)
    assert reason in found.ended
    assert "NameError" in session.run("lost").text


def test_long_outputs_keep_both_ends(session: PythonSession) -> None:
    found = session.run("print('begin'); print('x' * 10**6); print('end')").text
    assert found.startswith("begin")
    assert found.endswith("end\n")
    assert "characters left out" in found
    assert len(found) < 50_000


def test_threads_left_behind_are_stopped(session: PythonSession) -> None:
    session.run("import threading\nn = 0\ndef count():\n    global n\n    while True:\n        n += 1")
    first = session.run("threading.Thread(target=count, daemon=True).start()\nn").text
    assert first.strip().isdigit()
    before = int(session.run("n").text)
    time.sleep(0.5)
    assert int(session.run("n").text) - before < 2_000_000, "it counts millions in half a second"
    session.run("import os; os._exit(0)")


def test_closing_ends_running_code(host: HostCapabilities) -> None:
    session = PythonSession(host, Limits(cpu_s=60.0, memory_mb=200))
    session.run("1")
    failures: list[Exception] = []

    def run() -> None:
        try:
            session.run("while True: pass")
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    session.close()
    thread.join(10)
    assert isinstance(failures[0], WorkerFailed)
    own = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args"], capture_output=True, text=True).stdout
    assert own.count("supervisor:main") <= 1, "only that of the other session"
    with pytest.raises(WorkerFailed, match="closed"):
        session.run("1")


def test_an_episode_uses_one_interpreter(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> None:
    section = PythonToolConfig(cpu_s=2.0)
    section.check_problems(LastWordTask(), [problem])
    replies = [
        tool_call("python", code="x = 6"),
        tool_call("python", code="x * 7") + "\n" + tool_call("python", code=7),
        tool_call("python", code="#" * 60_000),
        "It is 42",
    ]
    sample = play(tokenizer, section, replies, max_tokens=100_000)
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, 1.0)
    assert counts(sample)["assistant"] == 4
    for said in ("(no output)", "[tool] 42", "must be text", "60000 bytes of code"):
        assert said in sample.text


def test_a_failed_sandbox_is_no_reward(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = HostCapabilities("auto", "", session_host("auto", "", ()).cache)
    broken.__dict__["spec"] = {**session_host("auto", "", ()).spec, "python": ("/nonexistent/python",)}
    monkeypatch.setattr(python_tool, "session_host", lambda *_: broken)
    sample = play(tokenizer, PythonToolConfig(), [tool_call("python", code="1"), "It is 42"])
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.JUDGE_ERROR, None)
    with pytest.raises(ConfigError, match="cannot be run here"):
        PythonToolConfig().check_problems(LastWordTask(), [])
