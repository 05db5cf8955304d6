"""What an audit can find, and what it is told and writes down of a problem."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from dojang.types import Outcome, Problem, Verdict

__all__ = ["DEFAULT_EXCLUDED", "FINDINGS", "Attempt", "Audited", "Finding", "Thoroughness"]


class Finding(NamedTuple):
    """One thing that may be wrong with a problem."""

    name: str
    detail: str


FINDINGS: Mapping[str, str] = {
    "unusable": "nothing can be judged by it",
    "refused": "a known-good answer does not get full marks",
    "accepts_wrong": "an answer that is not right gets full marks",
    "contradicting_tests": "the same input, but another output is expected",
    "several_answers": "there may be other right answers than the one that is expected",
    "tolerance": "answers may be rounded, but outputs are compared word by word",
    "trivial": "a program that solves nothing passes all tests",
    "flaky": "the same answer got different verdicts",
    "contaminated": "much of its text is in the evaluation set",
    "weak_tests": "a program with a mistake in it passes all tests",
    "guessable": "a program that solves nothing passes many tests",
    "few_tests": "it has few hidden tests",
    "shown_tests": "hidden tests are among those that are shown",
    "duplicate_tests": "a test occurs more than once",
    "slow": "a known-good answer needs much of the time limit",
    "any_case": "letters may be in any case, but outputs are compared as they are",
    "unjudged": "an answer could not be judged: the machinery failed, not the answer",
}
"""What they mean, the gravest first."""
DEFAULT_EXCLUDED = tuple(list(FINDINGS)[:9])
"""What a filtered dataset leaves out; the others only make a problem a weaker one."""


@dataclass(frozen=True, slots=True)
class Thoroughness:
    """How much is tried, and from where on it is told."""

    solutions: int = 3
    """Known-good answers tried of a problem, and answers that the data call wrong."""
    mutants: int = 3
    """Mutated programs tried of a problem."""
    repeats: int = 2
    """How often the same answer is judged."""
    min_tests: int = 5
    """Fewer checks than this are few."""
    guess: float = 0.7
    """The share of the tests that is many for a program that solves nothing."""
    slow: float = 0.5
    """The share of the time limit that is much."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An answer that was graded."""

    kind: str
    """known-good, again, mutated, called wrong, perturbed, or what a trivial program does."""
    verdict: Verdict
    cpu_s: float = 0.0
    """Of the slowest test."""
    checkers: Mapping[str, bool] = field(default_factory=dict)
    """Whether each choice of task.checker accepts it, if that was tried."""

    @property
    def full(self) -> bool:
        """Whether it got full marks."""
        return self.verdict.outcome is Outcome.ACCEPTED and all(part >= 1 for part in self.verdict.parts.values())

    @property
    def judged(self) -> bool:
        return self.verdict.outcome is not Outcome.JUDGE_ERROR

    def as_json(self) -> dict[str, Any]:
        verdict = asdict(self.verdict)
        kept = {name: verdict[name] for name in ("outcome", "passed", "total", "reward", "seconds", "detail")}
        tried = {"checkers": dict(self.checkers)} if self.checkers else {}
        return {"kind": self.kind, **kept, "cpu_s": self.cpu_s, **tried}


@dataclass(slots=True)
class Audited:
    """A problem and what was found."""

    problem: Problem
    split: str
    findings: list[Finding] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    overlap: tuple[str, float] | None = None
    """The problem of the evaluation set that is most like it, and how much."""

    def find(self, name: str, detail: str) -> None:
        assert name in FINDINGS
        self.findings.append(Finding(name, detail))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.findings)

    def of(self, *kinds: str) -> list[Attempt]:
        """The attempts of these kinds that could be judged."""
        return [each for each in self.attempts if each.kind in kinds and each.judged]

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.problem.id,
            "source": self.problem.source,
            "split": self.split,
            "tier": self.problem.tier,
            "findings": [each._asdict() for each in self.findings],
            "overlap": None if self.overlap is None else {"id": self.overlap[0], "share": self.overlap[1]},
            "attempts": [each.as_json() for each in self.attempts],
        }
