"""The corpus of cheats: what an agent may do in a terminal to get a reward that it has not earned.

    # tries: write the reward before the verifier runs
    # task: answer
    # background: yes      optional: it acts while or after the verifier runs
    # needs: gcc           optional: a program it needs

Each is a shell script in cheats/, for a task in agent_tasks/. Paths of the tests and the reward are in TESTS and LOGS.
`run_naively` is how it must not be done: it runs the agent's commands and the verifier one after the other in the same
shell, with the same files and variables.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from dojang.data.agent_task import TaskFile, read_agent_task
from dojang.environments.base import Reply, Step
from dojang.environments.results import as_step
from dojang.environments.terminal import Terminal, TerminalConfig
from dojang.judge.sandbox.file_tree import FileTree
from dojang.judge.shell_sandbox import ShellSandbox
from dojang.tool_calls.calls import ToolCall
from dojang.types import Message, Problem, Verdict

HERE = Path(__file__).parent
TASKS = HERE / "agent_tasks"
NAIVE = """
export TESTS=/tmp/naive/tests LOGS=/tmp/naive/logs
mkdir -p "$LOGS"
. /tmp/naive/agent.sh > /dev/null 2>&1
mkdir -p "$LOGS" 2> /dev/null
bash "$TESTS/test.sh" > /dev/null 2>&1 || true
for try in $(seq $TRIES); do
  reward=$(cat "$LOGS/reward.txt" 2> /dev/null)
  [ "$reward" = 1 ] && break
  sleep 0.05
done
echo "$reward"
"""


@dataclass(frozen=True)
class Cheat:
    """A script of the corpus."""

    name: str
    task: str
    tries: str
    script: str
    background: bool
    needs: str


def read_cheats() -> list[Cheat]:
    """Reads the corpus, by name."""
    found = []
    for path in sorted((HERE / "cheats").glob("*.sh")):
        text = path.read_text()
        header = dict(line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("# "))
        unknown = set(header) - {"tries", "task", "background", "needs"}
        assert not unknown, f"{path.name} has unknown headers {unknown}"
        background = header.get("background") == "yes"
        found.append(Cheat(path.stem, header["task"], header["tries"], text, background, header.get("needs", "")))
    return found


def solution(task: str) -> str:
    """Returns the script of an honest solution."""
    return (TASKS / task / "solution" / "solve.sh").read_text()


def problem_of(task: str) -> Problem:
    found = read_agent_task(TASKS / task)
    reference = {"path": str(TASKS / task), "digest": found.digest}
    return Problem(f"agent_tasks/{task}", "agent_tasks", (Message("user", found.instruction),), reference)


def run_in_terminal(config: TerminalConfig, task: str, script: str) -> tuple[str, Verdict]:
    """Plays an episode whose agent runs the script; returns what it was told, and the verdict."""
    environment = Terminal(config)
    try:
        environment.reset(problem_of(task))
        call = ToolCall("bash", {"command": script})
        told = as_step(asyncio.run(environment.step(Reply("", 0, 1, calls=[call]))))
        assert isinstance(told, Step)
        ended = as_step(asyncio.run(environment.step(Reply("done", 1, 0))))
        assert ended.verdict is not None
        return told.messages[0].content, ended.verdict  # type: ignore[index,union-attr]
    finally:
        environment.close()


def run_naively(sandbox: ShellSandbox, task: str, script: str, *, background: bool = False) -> str:
    """Runs agent and verifier in one shell; returns the reward as it is written."""
    found = read_agent_task(TASKS / task)
    sandbox.run(["/bin/chmod", "-R", "u+rwX", "/app", "/tmp", "/home/agent"], 1000)
    for folder in ("/home/agent", "/dev/shm"):
        sandbox.put(folder, FileTree([], []))
    sandbox.put("/app", _tree(found.files))
    tests = {f"naive/tests/{name}": file for name, file in found.tests.items()}
    own = {"naive/agent.sh": TaskFile(script.encode()), "naive/run.sh": TaskFile(NAIVE.encode())}
    sandbox.put("/tmp", _tree({**tests, **own}))
    tries = f"TRIES={400 if background else 1}"
    ended = sandbox.run(["/usr/bin/env", tries, "/bin/bash", "/tmp/naive/run.sh"], 4000)
    assert not ended.killed, f"{ended.killed}: {ended.text}"
    return ended.text.strip().rpartition("\n")[2]


def _tree(files: dict[str, TaskFile]) -> FileTree:
    entries = [{"path": name, "kind": "file", "executable": file.executable} for name, file in files.items()]
    return FileTree(entries, [file.content for file in files.values()])
