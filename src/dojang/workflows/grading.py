"""Having an attempt judged, again if the machinery fails."""

from dojang.protocols import Task
from dojang.types import Outcome, Problem, Verdict

__all__ = ["ATTEMPTS", "graded"]

ATTEMPTS = 3


async def graded(task: Task, problem: Problem, text: str) -> Verdict:
    """The verdict; JUDGE_ERROR if there is none after ATTEMPTS."""
    for _ in range(ATTEMPTS):
        try:
            verdict = await task.grade(problem, text)
        except Exception as error:  # a task should not raise, but a user's own may
            verdict = Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {error!r}")
        if verdict.outcome is not Outcome.JUDGE_ERROR:
            break
    return verdict
