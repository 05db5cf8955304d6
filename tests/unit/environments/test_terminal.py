"""A terminal as a tool: commands with limits, verifiers that run apart. Failures of a sandbox are no rewards."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.data.agent_task import read_agent_task
from dojang.environments.terminal import Terminal, TerminalConfig
from dojang.judge import supervised_worker
from dojang.judge.sandbox.file_tree import FileTree
from dojang.judge.shell_sandbox import ShellLimits, ShellOutput, ShellSandbox
from dojang.judge.verifier import Verifier, VerifierRun, VerifierVerdict
from dojang.types import Message, Outcome, Problem
from scripted_episodes import LastWordTask, counts, play, tool_call

CONFIG = TerminalConfig()
pytestmark = pytest.mark.skipif(bool(CONFIG.host().features["namespaces"]), reason="this machine has no namespaces")
SCRIPT = "grep -qx 42 answer.txt && echo 1 > /logs/verifier/reward.txt"


def make_task(folder: Path, script: str = SCRIPT, **files: str) -> Problem:
    (folder / "tests").mkdir(parents=True)
    (folder / "files").mkdir()
    (folder / "instruction.md").write_text("Write 42 to answer.txt.")
    (folder / "tests" / "test.sh").write_text(script)
    for name, text in files.items():
        (folder / "files" / name).write_text(text)
    task = read_agent_task(folder)
    reference = {"path": str(folder), "digest": task.digest}
    return Problem("agent_tasks/x", "agent_tasks", (Message("user", task.instruction),), reference)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ShellSandbox]:
    made = ShellSandbox(
        CONFIG.host(), "agent", "/app", ShellLimits(cpu_s=1.0, wall_s=20.0, memory_mb=300, processes=40)
    )
    yield made
    made.close()


def run(sandbox: ShellSandbox, command: str, wall_s: float | None = None) -> ShellOutput:
    return sandbox.run(["/bin/bash", "-c", command], 4000, wall_s)


def tree(**files: str) -> FileTree:
    entries = [{"path": name, "kind": "file", "executable": False} for name in files]
    return FileTree(entries, [text.encode() for text in files.values()])


def verify(script: str, **files: str) -> VerifierVerdict:
    limits = ShellLimits(cpu_s=60, wall_s=60)
    return Verifier(CONFIG.host(), VerifierRun(tree(**{"test.sh": script}), tree(**files), "/app", limits)).verify()


def test_files_are_kept_and_processes_are_not(sandbox: ShellSandbox) -> None:
    assert (
        run(sandbox, "echo kept > notes; sleep 1000 & nohup setsid sleep 1000 > /dev/null 2>&1 & pwd").text == "/app\n"
    )
    assert run(sandbox, "cat notes; ps ax | grep -c '[s]leep'").text == "kept\n0\n"


def test_the_machine_is_hidden(sandbox: ShellSandbox) -> None:
    assert "No such file" in run(sandbox, "cat /etc/shadow").text
    assert run(sandbox, "id -u; echo $HOME; ls /home").text.split()[1:] == ["/home/agent", "agent"]
    assert run(sandbox, "touch /usr/x || touch /opt/dojang/bin/x || touch /x").status != 0
    assert run(sandbox, "ls /tests /logs").status != 0
    for command in (
        "unshare -r true",
        "mount -t tmpfs x /tmp",
        "kill -9 1; kill -STOP 1; ls /proc/1/fd",
        "chroot / true",
    ):
        assert run(sandbox, command).status != 0
    assert run(sandbox, "echo alive").text == "alive\n"


@pytest.mark.parametrize(
    ("command", "wall_s", "reason"),
    [
        ("while :; do :; done", None, "more than 1 s of CPU time"),
        ("for i in 1 2 3 4; do (while :; do :; done) & done; wait", None, "more than 1 s of CPU time"),
        ("sleep 100", 0.3, "took more than 0.3 s"),
        ("python3 -c 'b = bytearray(400 << 20); import time; time.sleep(60)'", None, "more than 300 MB"),
    ],
)
def test_limits_are_told(sandbox: ShellSandbox, command: str, wall_s: float | None, reason: str) -> None:
    ended = run(sandbox, f"echo before; {command}", wall_s)
    assert reason in ended.killed
    assert ended.text == "before\n"
    assert run(sandbox, "echo after").text == "after\n"


def test_fork_bombs_and_full_disks_stay_inside(sandbox: ShellSandbox) -> None:
    assert run(sandbox, ":() { : | : & }; :; sleep 1000", 5.0).killed
    assert int(run(sandbox, "ps ax --no-headers | wc -l").text) < 10
    full = run(sandbox, "for i in 1 2 3; do head -c 100M /dev/zero > /tmp/big$i; done")
    assert "No space left" in full.text, full
    assert run(sandbox, "rm /tmp/big*; echo after").text == "after\n"


def test_output_is_cut_to_the_exact_length(sandbox: ShellSandbox) -> None:
    for size in (0, 1, 199, 200, 201, 1600, 1601, 70_000, 3_000_000):
        command = f"head -c {size} /dev/zero | tr '\\0' x; exit 3"
        ended = sandbox.run(["/bin/bash", "-c", command], 200)
        assert len(ended.text) == min(size, len(ended.text), 200)
        assert len(ended.text) >= min(size, 195)
        assert ended.status == 3


def test_rewards_are_read_as_written() -> None:
    where = "/logs/verifier/reward"
    assert verify(f"echo 0.25 > {where}.txt").reward == 0.25
    assert verify(f'echo \'{{"reward": 0.5, "style": 1}}\' > {where}.json; exit 1') == VerifierVerdict(
        0.5, {"style": 1.0}, "verifier: exit code 1"
    )
    assert verify(f'echo \'{{"a": 1, "b": 0}}\' > {where}.json').reward == 0.5


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 0", "wrote no reward"),
        ("nonsense", "command not found"),
        ("echo nan > /logs/verifier/reward.txt", "reward is nan"),
        ("echo much > /logs/verifier/reward.txt", "cannot be read"),
        ("echo '[1]' > /logs/verifier/reward.json", "must have a number"),
        ("ln -s /proc/1/environ /logs/verifier/reward.txt", "wrote no reward"),
        ("echo 1 > /logs/verifier/reward.txt; kill -9 $$", "signal 9"),
    ],
)
def test_verifiers_that_fail_are_no_reward(script: str, reason: str) -> None:
    found = verify(script)
    assert reason in found.detail
    assert found.reward == (1.0 if "kill" in script else 0.0)


def test_code_of_the_agent_runs_in_another_sandbox() -> None:
    code = "import os, sys\nprint('beside' if os.path.exists('/tests') else 'apart', sys.stdin.read(), *sys.argv[1:])\n"
    code += "open('out.txt', 'w').write(os.environ.get('LEVEL', ''))\nsys.exit(7)\n"
    script = """
    export LEVEL=9; echo before > in.txt
    for command in "python3 main.py" "run-untrusted python3 main.py" "/usr/bin/python3 -I /app/main.py" \
        "env -i /usr/bin/python3 /app/main.py" "python3 -m main"; do
        rm -f out.txt
        printed=$(echo input | $command a b)
        [ "$?:$printed" = "7:apart input
 a b" ] || { echo "$command: $printed"; exit 1; }
        [ -f out.txt ] || exit 1
    done
    cat out.txt; ./main.py; bash run.sh; sh run.sh; perl -e 'print "own\\n"'
    echo 1 > /logs/verifier/reward.txt
    """
    found = verify(script, **{"main.py": code, "run.sh": "ls /tests > /dev/null 2>&1 || echo apart\n"})
    assert found.reward == 1.0, found.detail
    assert found.detail.endswith("Permission denied\napart\napart\nown")


def test_commands_of_the_verifier_are_not_replaced_by_files_named_as_shells() -> None:
    script = """
    told=$(bash <<'END'
echo input
END
)$(echo 'echo " $1"' | bash -s argument)$(bash -c 'echo " $0"' bash)$(sh -c 'echo " $0"' sh)$(bash bash)
    echo "$told"
    [ "$told" = "input argument bash shagent" ] && echo 1 > /logs/verifier/reward.txt
    """
    found = verify(script, bash="[ -e /tests ] || echo agent\n", sh="echo agent\n")
    assert found.reward == 1.0, found.detail


def test_modules_of_the_agent_are_called_in_another_sandbox() -> None:
    module = """
import os
LEVEL = 3
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item); return self
    def __iter__(self): return iter(self.items)
def fail(): raise KeyError("x")
def sees(): return os.path.exists("/tests")
def sort(items): items.sort()
"""
    test = """
import importlib.util, json, runpy, sys
import deep.inner
from solution import LEVEL, Stack, fail, sort
import solution
assert LEVEL == 3 and deep.inner.VALUE == 4 and list(Stack().push(1).push("a")) == [1, "a"]
assert solution.sees() is False and json.__file__.startswith("/app") is False
items = [3, 1]; sort(items); assert items == [1, 3]
try: fail()
except KeyError: pass
else: raise SystemExit(1)
spec = importlib.util.spec_from_file_location("other", "/app/solution.py")
other = importlib.util.module_from_spec(spec); spec.loader.exec_module(other)
assert other.sees() is False
def load(path): return lambda: exec(open(path).read())
for use in (load("/app/solution.py"), load("/app/windows.py"), lambda: runpy.run_path("/app/solution.py")):
    try: use()
    except ImportError as error: assert "run-untrusted" in str(error)
    else: raise SystemExit(1)
"""
    files = {
        "solution.py": module,
        "windows.py": "LEVEL = 3\r\nHEIGHT = 4\r\n",
        "json.py": "raise SystemExit(0)",
        "deep/inner.py": "VALUE = 4",
        "deep/__init__.py": "",
    }
    script = f"cat > /tmp/t.py <<'END'\n{test}\nEND\npython3 /tmp/t.py && echo 1 > /logs/verifier/reward.txt"
    found = verify(script, **files)
    assert found.reward == 1.0, found.detail


def test_settings_of_pytest_come_from_the_tests() -> None:
    """By pytest alone, without a test.sh; settings of the agent in any folder have no effect."""
    host = TerminalConfig(python=sys.executable).host()
    tests = tree(**{"test_it.py": "import solution\n\n\ndef test_it():\n    assert solution.two() == 2\n"})
    ini = "[pytest]\naddopts = --collect-only\n"
    for answer in (2, 3):
        files = tree(**{"solution.py": f"def two():\n    return {answer}\n", "pytest.ini": ini, "a/pytest.ini": ini})
        found = Verifier(host, VerifierRun(tests, files, "/app", ShellLimits())).verify()
        assert found.reward == float(answer == 2), found.detail


def test_skipped_tests_have_not_passed() -> None:
    host = TerminalConfig(python=sys.executable).host()
    skip = "import pytest\n\nlacking = pytest.importorskip('no_such_package')\n"
    for test, reward in ((skip, 0.0), ("def test_it():\n    pass\n", 1.0)):
        found = Verifier(host, VerifierRun(tree(**{"test_it.py": test}), tree(), "/app", ShellLimits())).verify()
        assert found.reward == reward, found.detail


def test_variables_of_the_verifier_are_hidden_from_the_agent(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    script = '[ "$EXPECTED" = 7 ] && python3 main.py | grep -qx None && echo 1 > /logs/verifier/reward.txt'
    problem = make_task(tmp_path / "x", script, **{"main.py": "import os\nprint(os.environ.get('EXPECTED'))\n"})
    (tmp_path / "x" / "task.toml").write_text("[verifier]\nenv = { EXPECTED = '7' }\n")
    reference = {"path": str(tmp_path / "x"), "digest": read_agent_task(tmp_path / "x").digest}
    sample = play(tokenizer, CONFIG, ["Done."], problem=replace(problem, reference=reference))
    assert sample.verdict.reward == 1.0, sample.verdict.detail


def test_a_sandbox_that_fails_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the sandbox of the agent's code: the verifier would take its failure for a wrong answer."""
    real = ShellSandbox.__init__

    def failing(self: ShellSandbox, host: object, role: str, *given: object) -> None:
        if role == "untrusted":
            raise supervised_worker.WorkerFailed("no more processes")
        real(self, host, role, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(ShellSandbox, "__init__", failing)
    with pytest.raises(supervised_worker.WorkerFailed, match="could not be run for the verifier: no more processes"):
        verify("python3 main.py; echo 1 > /logs/verifier/reward.txt", **{"main.py": ""})


def test_an_episode(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    problem = make_task(tmp_path / "x", given="41\n")
    replies = iter([tool_call("bash", command="cat given; false"), tool_call("bash", command="echo 42 > answer.txt")])
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return next(replies, "Done.")

    sample = play(tokenizer, CONFIG, reply, problem=problem, max_tokens=2000)
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, 1.0)
    assert counts(sample) == {"assistant": 3, "tool": 2, "user": 0}
    assert prompts[1].endswith("41\n\n(exit code 1)<|end|><|assistant|>")
    assert prompts[2].endswith("(no output)<|end|><|assistant|>")


def test_the_verifier_also_runs_when_turns_are_up(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    problem = make_task(tmp_path / "x")
    section = CONFIG.model_copy(update={"max_turns": 1})
    sample = play(
        tokenizer, section, [tool_call("bash", command="echo 42 > answer.txt")], problem=problem, max_tokens=2000
    )
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, 1.0)
    assert "workflow.max_turns=1" in sample.verdict.detail


def test_too_many_files_are_a_reward_of_zero(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    problem = make_task(tmp_path / "x", "echo 1 > /logs/verifier/reward.txt")
    for command in ("truncate -s 100G big || head -c 100M /dev/zero > big", "mkdir -p $(printf 'a/%.0s' {1..100})"):
        sample = play(
            tokenizer, CONFIG, [tool_call("bash", command=command), "Done."], problem=problem, max_tokens=2000
        )
        assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.WRONG, 0.0)
        assert "cannot be verified" in sample.verdict.detail


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt"),
        lambda folder: (folder / "instruction.md").unlink(),
    ],
)
def test_tasks_that_change_during_a_run_fail(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    problem = make_task(tmp_path / "x")
    change(tmp_path / "x")
    sample = play(tokenizer, CONFIG, ["Done."], problem=problem, max_tokens=2000)
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.JUDGE_ERROR, None)


def test_closing_ends_a_running_verifier(tmp_path: Path) -> None:
    terminal = Terminal(CONFIG)
    terminal.reset(make_task(tmp_path / "x", "sleep 1000"))
    failures: list[Exception] = []

    def wait() -> None:
        try:
            terminal._verify()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive():
        terminal.close()
        thread.join(0.1)
    assert len(failures) == 1


def test_problems_are_checked_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CONFIG.check_problems(LastWordTask(), [make_task(tmp_path / "x")])
    with pytest.raises(ConfigError, match=r"data\.name=agent_tasks"):
        CONFIG.check_problems(LastWordTask(), [Problem("a", "a", (Message("user", "hi"),), "42")])
    pytests = make_task(tmp_path / "y")
    (tmp_path / "y" / "tests" / "test.sh").rename(tmp_path / "y" / "tests" / "test_it.py")
    digest = read_agent_task(tmp_path / "y").digest
    pytests = Problem("a", "a", pytests.messages, {"path": str(tmp_path / "y"), "digest": digest})
    TerminalConfig(python=sys.executable).check_problems(LastWordTask(), [pytests])
    monkeypatch.setattr("dojang.environments.terminal.visible_paths", lambda host: [str(tmp_path)])
    with pytest.raises(ConfigError, match="agents could read the tests"):
        CONFIG.check_problems(LastWordTask(), [make_task(tmp_path / "z")])


def test_machines_without_namespaces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIG.host().features, "namespaces", "not permitted")
    monkeypatch.delitem(CONFIG.host().__dict__, "isolation", raising=False)
    try:
        with pytest.raises(ConfigError, match="need isolation namespaces, not landlock"):
            ShellSandbox(CONFIG.host(), "agent", "/app", ShellLimits())
    finally:
        CONFIG.host().__dict__.pop("isolation", None)


def test_a_short_timeout_is_refused() -> None:
    with pytest.raises(ValueError, match="must be longer than wall_s and verifier_s together"):
        TerminalConfig(timeout_s=60.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run without root")
def test_users_without_root_have_the_same_sandboxes(tmp_path: Path) -> None:
    code = f"""
import sys; sys.path[:0] = {sys.path!r}
from dojang.judge.host_capabilities import HostCapabilities
from dojang.judge.sandbox.file_tree import FileTree
from dojang.judge.shell_sandbox import ShellLimits, ShellSandbox
from dojang.judge.verifier import Verifier, VerifierRun
from pathlib import Path
host = HostCapabilities("auto", "", Path("/nonexistent"))
if host.features["namespaces"]: raise SystemExit(77)
def tree(**files):
    entries = [dict(path=name, kind="file", executable=False) for name in files]
    return FileTree(entries, [text.encode() for text in files.values()])
agent = ShellSandbox(host, "agent", "/app", ShellLimits())
agent.run(["/bin/bash", "-c", "setsid sleep 1000 & echo 'print(6 * 7)' > main.py; ln -s /etc/hostname x"], 1000)
files = agent.get("/app"); agent.close()
assert [each["path"] for each in files.entries] == ["main.py"], files
test = tree(**{{"test.sh": '[ "$(python3 main.py)" = 42 ] && echo 1 > /logs/verifier/reward.txt'}})
found = Verifier(host, VerifierRun(test, files, "/app", ShellLimits())).verify()
assert found.reward == 1.0, found
"""
    # As root in a folder of root's, an ordinary user could not read the interpreter: a system's one will do.
    python = next((each for each in ("/usr/bin/python3", "/usr/local/bin/python3") if os.path.exists(each)), "")
    tools = [python, "-c", "import sys; raise SystemExit(sys.version_info < (3, 11))"]
    if not python or subprocess.run(tools).returncode:
        pytest.skip("no interpreter that every user can read")
    result = subprocess.run([python, "-c", code], user=65534, group=65534, capture_output=True, text=True, cwd="/")
    if result.returncode == 77 or "PermissionError" in result.stderr or "No module named" in result.stderr:
        pytest.skip(f"ordinary users cannot run it here: {result.stderr[-300:]}")
    assert result.returncode == 0, result.stderr
