import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dojang.core.paths import cache_root
from dojang.judge import selftest as module
from dojang.judge.host_capabilities import probe
from dojang.judge.pool import JudgePool
from dojang.judge.selftest import CheckResult, selftest
from dojang.judge.selftest_programs import CHECKS, ENVIRONMENT, Check
from dojang.programs import IoTest, Isolation, Judgement, Submission, TestResult, TestSuite
from dojang.types import Outcome

OFFERS = probe()
HARMFUL = ("kill its parent", "leave a file for the next test")
"""Checks that must not succeed on the test machine."""
BLOCKED = TestSuite((IoTest("", "blocked"),))

needs_isolation = pytest.mark.skipif(
    all(OFFERS[name] for name in ("namespaces", "landlock", "seccomp")), reason=f"nothing to keep programs in: {OFFERS}"
)


class Fixed(JudgePool):
    """Returns the same judgement for every submission."""

    def __init__(self, outcome: Outcome, level: Isolation = Isolation.LANDLOCK, **result: Any) -> None:
        super().__init__(cache=Path("/nowhere"), isolation=level)
        self.host.__dict__.update(features=dict.fromkeys(OFFERS, ""), toolchain=None)
        self.fixed = Judgement(outcome, (TestResult(0, outcome, **result),), 1, level)

    async def judge(self, submission: Submission) -> Judgement:
        return self.fixed


async def collected(pool: JudgePool) -> list[CheckResult]:
    return [each async for each in selftest(pool)]


def tried(pool: JudgePool, checks: Sequence[Check], monkeypatch: pytest.MonkeyPatch) -> list[CheckResult]:
    monkeypatch.setattr(module, "CHECKS", checks)
    return asyncio.run(collected(pool))[: len(checks)]


@needs_isolation
def test_selftest_passes_here() -> None:
    command = [sys.executable, "-m", "dojang", "judge", "selftest", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    told = json.loads(result.stdout)
    assert [each for each in told["checks"] if each["state"] == "failed"] == []
    assert (result.returncode, result.stderr) == (0, "")
    skipped = [each["language"] for each in told["checks"] if each["state"] == "skipped"]
    assert set(skipped) == (set() if shutil.which("g++") else {"cpp17"})
    assert told["isolation"] in ("namespaces", "landlock", "seccomp")
    assert set(told["lacking"]) == {name for name, why in OFFERS.items() if why}


def test_successful_escape_is_detected() -> None:
    """Without isolation, programs do what the table says they must not."""

    async def run() -> dict[str, Judgement]:
        async with JudgePool(cache=cache_root(), isolation="none") as pool:
            return {
                check.name: await pool.judge(Submission(check.language, check.source, check.test_suite))
                for check in CHECKS
                if check.escape and check.language == "python3" and check.name not in HARMFUL
            }

    found = asyncio.run(run())
    by_name = {check.name: check for check in CHECKS if check.language == "python3"}
    undetected = [name for name, judgement in found.items() if not module._problem(by_name[name], judgement)]
    assert undetected in ([], ["read the environment"])  # which is clean without isolation, too


def test_unexpected_outcomes_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check("try", "python3", Outcome.ACCEPTED, "trouble", BLOCKED, "", escape=True, killed=True)
    (found,) = tried(Fixed(Outcome.WRONG, detail="token 1 is 'escaped'"), [check], monkeypatch)
    assert (found.state, found.meaning) == ("failed", "trouble")
    assert found.found == "expected accepted, got wrong: token 1 is 'escaped'"
    (found,) = tried(Fixed(Outcome.JUDGE_ERROR, detail="no worker\ncan be started"), [check], monkeypatch)
    assert found.found == "expected accepted, got judge_error: no worker"
    assert tried(Fixed(Outcome.RUNTIME_ERROR, signal="SIGSEGV"), [check], monkeypatch)[0].state == "failed"
    assert tried(Fixed(Outcome.RUNTIME_ERROR, signal="SIGSYS"), [check], monkeypatch)[0].state == "ok"
    assert tried(Fixed(Outcome.ACCEPTED), [check], monkeypatch)[0].state == "ok"


def test_leaked_text_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check("look", "python3", Outcome.WRONG, "a leak", BLOCKED, "", hides="root:")
    for place in ("detail", "output", "errors"):
        (found,) = tried(Fixed(Outcome.WRONG, **{place: "x root:x:0"}), [check], monkeypatch)
        assert found.state == "failed"
    assert tried(Fixed(Outcome.WRONG), [check], monkeypatch)[0].state == "ok"


def test_unavailable_checks_are_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    native = Check("build", "cpp17", Outcome.ACCEPTED, "", BLOCKED, "")
    out = Check("get out", "python3", Outcome.ACCEPTED, "", BLOCKED, "", escape=True)
    found = tried(Fixed(Outcome.ACCEPTED, Isolation.NONE), [native, out], monkeypatch)
    assert [each.state for each in found] == ["skipped", "skipped"]
    assert "needs g++" in found[0].found
    assert found[1].found == "isolation none does not confine programs"


def test_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    tried(Fixed(Outcome.ACCEPTED), CHECKS[:1], monkeypatch)
    assert ENVIRONMENT[0] not in os.environ


def test_every_check_has_a_meaning() -> None:
    assert len({(check.language, check.name) for check in CHECKS}) == len(CHECKS)
    assert all(check.meaning and check.source and check.outcome is not Outcome.JUDGE_ERROR for check in CHECKS)
    assert sum(check.escape for check in CHECKS) >= 12
