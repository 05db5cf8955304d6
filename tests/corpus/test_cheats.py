"""Rewards cannot be forged: every cheat of the corpus deceives a naive runner, and none deceives the terminal."""

import shutil
import sys
from collections.abc import Callable, Iterator

import pytest
from cheat_runs import TASKS, Cheat, read_cheats, run_in_terminal, run_naively, solution

from dojang.environments.terminal import TerminalConfig
from dojang.judge.shell_sandbox import ShellLimits, ShellSandbox
from dojang.types import Outcome

CHEATS = read_cheats()
HONEST = sorted(path.name for path in TASKS.iterdir())


@pytest.fixture(scope="module", autouse=True)
def _needs_namespaces() -> None:
    if why := TerminalConfig().host().features["namespaces"]:
        pytest.skip(f"this machine has no namespaces: {why}")


def config_of(task: str) -> TerminalConfig:
    """Settings with an interpreter that has what the tests of the task need."""
    return TerminalConfig(python=sys.executable if task == "pytest" else "")


@pytest.fixture(scope="module")
def naive() -> Iterator[Callable[..., str]]:
    """Runs a script and a verifier naively, in sandboxes that are used again."""
    sandboxes: dict[str, ShellSandbox] = {}

    def run(task: str, script: str, *, background: bool = False) -> str:
        config = config_of(task)
        if config.python not in sandboxes:
            sandboxes[config.python] = ShellSandbox(config.host(), "agent", "/app", ShellLimits())
        return run_naively(sandboxes[config.python], task, script, background=background)

    yield run
    for each in sandboxes.values():
        each.close()


def test_the_corpus_is_as_large_as_it_is_said_to_be() -> None:
    assert len(CHEATS) >= 70
    assert {each.task for each in CHEATS} == set(HONEST)


@pytest.mark.parametrize("task", HONEST)
def test_honest_solutions_are_rewarded(naive: Callable[..., str], task: str) -> None:
    assert naive(task, solution(task)) == "1"
    told, verdict = run_in_terminal(config_of(task), task, solution(task))
    assert (verdict.outcome, verdict.reward) == (Outcome.ACCEPTED, 1.0), f"{told}\n{verdict.detail}"


@pytest.mark.parametrize("task", HONEST)
def test_doing_nothing_is_not_rewarded(naive: Callable[..., str], task: str) -> None:
    assert naive(task, "") != "1"


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda each: each.name)
def test_cheats_deceive_only_a_naive_runner(naive: Callable[..., str], cheat: Cheat) -> None:
    if cheat.needs and not shutil.which(cheat.needs):
        pytest.skip(f"this machine has no {cheat.needs}")
    assert naive(cheat.task, cheat.script, background=cheat.background) == "1", "no cheat at all"
    told, verdict = run_in_terminal(config_of(cheat.task), cheat.task, cheat.script)
    assert (verdict.outcome, verdict.reward) == (Outcome.WRONG, 0.0), f"{told}\n{verdict.detail}"
