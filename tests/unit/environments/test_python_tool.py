"""Python as a tool: real sandboxed sessions. Mistakes of the code are told; failures of the sandbox are no rewards."""

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.environments import python_tool
from dojang.environments.base import Reply
from dojang.environments.multi_turn import EpisodeLimits
from dojang.environments.python_tool import PythonTool, PythonToolConfig, ToolExample
from dojang.environments.sandboxed_section import SandboxedSection
from dojang.environments.terminal import TerminalConfig
from dojang.judge.host_capabilities import HostCapabilities
from dojang.judge.python_session import PythonSession, session_host
from dojang.judge.sandbox import supervisor
from dojang.judge.worker_handle import WorkerFailed
from dojang.programs import Limits
from dojang.tasks.answer_line import AnswerLineConfig
from dojang.types import Message, Outcome, Problem
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


def test_blocks_of_code_are_run_where_the_model_has_no_tool_calls(
    tokenizer: PreTrainedTokenizerBase, problem: Problem
) -> None:
    section = PythonToolConfig(call_format="code_block", cpu_s=2.0)
    section.check_problems(LastWordTask(), [problem])
    replies = [
        "First\n```python\nx = 6\n```",
        "```python\nprint(x * 7)\n```\n",
        "```python\n1 / 0\n```",
        "```text\nno code\n```\nIt is 42",
    ]
    sample = play(tokenizer, section, replies, max_tokens=100_000)
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, 1.0)
    assert counts(sample) == {"assistant": 4, "tool": 0, "user": 3}
    for said in ("```output\n(no output)\n```", "```output\n42\n```", "ZeroDivisionError"):
        assert said in sample.text


@pytest.mark.parametrize(
    "reply",
    [
        "The result is\n```\n123\n```\nso\n#### The final answer is 42",
        "I used <code>print</code> for it: 42",
        "First:\n```python\nprint(1)\n```\nIt is 42",
        "```cpp\nint x = 1;\n```",
        "```python\nprint(1)",  # half a program
    ],
)
def test_a_reply_that_does_not_end_with_a_block_of_python_is_the_answer(reply: str) -> None:
    environment = PythonToolConfig(call_format="code_block").environment()
    environment.reset(Problem("p", "p", (Message("user", "?"),), "42"))
    environment.answer = lambda reply: asyncio.sleep(0, "graded")  # type: ignore[attr-defined]
    assert asyncio.run(environment.step(Reply(reply, 0, 1))) == "graded"


def test_code_that_is_no_text_is_an_error_of_the_model(host: HostCapabilities) -> None:
    tool = PythonTool(host, Limits(cpu_s=5, memory_mb=512))
    try:
        assert tool.python("x = 1\0") == "error: code must not contain null characters"
        assert tool.python("x = '\ud800'").startswith("error: 'utf-8' codec can't encode")
        assert tool.python("1 + 1") == "2\n"
    finally:
        tool.close()


def test_blocks_of_code_are_refused_where_answers_are_programs() -> None:
    class Programs:
        languages = frozenset({"python3"})

    with pytest.raises(ConfigError, match=r"answers that are programs .*use workflow\.name=repair"):
        PythonToolConfig(call_format="code_block").check_problems(Programs(), [])  # type: ignore[arg-type]


def test_code_blocks_add_to_the_question_and_the_stop_line() -> None:
    blocks, calls = PythonToolConfig(call_format="code_block"), PythonToolConfig()
    environment = blocks.environment()
    system = Message("system", "Be brief.")
    first, question = environment.reset(Problem("p", "p", (system, Message("user", "Why?")), "1"))
    assert first == system
    assert question.role == "user"
    assert question.content.startswith("Why?\n\nYou can run Python code.")
    assert not environment.tools()
    line = AnswerLineConfig().stop_line()
    assert calls.stop_line(line) == line
    stop = blocks.stop_line(line)
    assert stop is not None
    assert stop.end("So\n```python\n1\n```\n") == len("So\n```python\n1\n```")
    assert stop.end("#### 7\n") == len("#### 7")


EXAMPLE = {"question": "2 * 3?", "code": "print(2 * 3)\n", "output": "6\n", "answer": "#### 6"}


def test_a_share_without_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="examples_share is the share of problems with examples"):
        PythonToolConfig(call_format="code_block", examples_share=0.5)


def test_examples_are_turns_before_the_question_of_a_share_of_the_problems() -> None:
    section = PythonToolConfig.model_validate(
        {"call_format": "code_block", "examples": [EXAMPLE], "examples_share": 0.25}
    )
    system = Message("system", "Be brief.")

    def asked(number: int) -> Sequence[Message]:
        found = section.environment().reset(Problem(f"p/{number}", "p", (system, Message("user", "Why?")), "1"))
        assert isinstance(found, Sequence)
        return found

    every = [asked(number) for number in range(400)]
    assert 70 <= sum(len(each) == 6 for each in every) <= 130
    assert all(asked(number) == each for number, each in enumerate(every[:20]))
    first, question, code, output, answer, last = next(each for each in every if len(each) == 6)
    assert (first, last) == (system, every[0][-1])
    assert [each.role for each in (question, code, output, answer)] == ["user", "assistant", "user", "assistant"]
    assert question.content == last.content.replace("Why?", "2 * 3?")
    assert code.content == "```python\nprint(2 * 3)\n```"
    assert output.content == "```output\n6\n```"
    assert answer.content == "#### 6"


def test_the_output_of_an_example_looks_as_that_of_a_run() -> None:
    environment = PythonToolConfig(call_format="code_block", cpu_s=2.0, reminder="Now answer.").environment()
    try:
        given = ToolExample.model_validate(EXAMPLE).messages("Now answer.")
        assert given[2].content == "```output\n6\n```\n\nNow answer."
        assert asyncio.run(environment.step(Reply(given[1].content, 0, 1))) == given[2].content
    finally:
        environment.close()


@pytest.mark.parametrize("section", [PythonToolConfig, TerminalConfig])
def test_sandboxes_of_a_large_batch_wait_for_user_ids_and_cores(section: type[SandboxedSection]) -> None:
    limits = section().limits
    assert (limits.max_concurrent, limits.timeout_s) == (200, 1200)
    assert supervisor._UIDS > 2 * 200  # a terminal's verifier has another one
    assert section.model_validate({"max_concurrent": 3, "timeout_s": 900}).limits == EpisodeLimits(
        limits.max_turns, 900, 3
    )


@pytest.mark.parametrize("setting", [{"examples": [EXAMPLE]}, {"reminder": "Now answer."}])
def test_examples_and_reminders_need_blocks_of_code(setting: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="is for blocks of code; set call_format=code_block"):
        PythonToolConfig.model_validate(setting)


@pytest.mark.parametrize("field", ["question", "code", "output", "answer"])
def test_no_part_of_an_example_is_blank(field: str) -> None:
    with pytest.raises(ValidationError, match=f"examples.0.{field}\n.*must have text"):
        PythonToolConfig.model_validate({"call_format": "code_block", "examples": [{**EXAMPLE, field: " \n"}]})


def test_a_missing_package_names_the_setting_of_the_tool() -> None:
    with pytest.raises(ConfigError, match=r"^workflow\.packages: 'no_such_package' not found"):
        PythonToolConfig(packages=["no_such_package"]).check_problems(LastWordTask(), [])


def test_a_failed_sandbox_is_no_reward(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = HostCapabilities("auto", "", session_host("auto", "", ()).cache)
    broken.__dict__["spec"] = {**session_host("auto", "", ()).spec, "python": ("/nonexistent/python",)}
    monkeypatch.setattr(python_tool, "session_host", lambda *_: broken)
    sample = play(tokenizer, PythonToolConfig(), [tool_call("python", code="1"), "It is 42"])
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.JUDGE_ERROR, None)
    with pytest.raises(ConfigError, match="cannot be run here"):
        PythonToolConfig().check_problems(LastWordTask(), [])
