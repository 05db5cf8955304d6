"""Findings of an audit, and the record of an audited problem."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from dojang.types import Outcome, Problem, Verdict

__all__ = ["DEFAULT_EXCLUDED", "FINDINGS", "Audited", "Finding", "GradedAnswer"]


class Finding(NamedTuple):
    """One possible defect of a problem."""

    name: str
    detail: str


FINDINGS: Mapping[str, str] = {
    "unusable": "the problem cannot be judged",
    "refused": "a known-good answer does not get full marks",
    "accepts_wrong": "a wrong answer gets full marks",
    "contradicting_tests": "two tests with the same input expect different outputs",
    "several_answers": "other answers than the expected one may be correct",
    "tolerance": "the statement allows rounding, but outputs are compared word by word",
    "trivial": "a trivial program passes all tests",
    "flaky": "the same answer got different verdicts",
    "contaminated": "much of its text is in the evaluation set",
    "weak_tests": "a wrong program passes all tests",
    "guessable": "a trivial program passes many tests",
    "few_tests": "it has few hidden tests",
    "shown_tests": "hidden tests are also shown in the statement",
    "duplicate_tests": "a test occurs more than once",
    "slow": "a known-good answer needs much of the time limit",
    "any_case": "the statement allows any letter case, but outputs are compared as they are",
    "unjudged": "an answer could not be judged: the judge failed, not the answer",
}
"""Findings and their meaning, most severe first."""
DEFAULT_EXCLUDED = tuple(list(FINDINGS)[:9])
"""Findings that a clean dataset excludes; the others only make a problem weaker."""


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """An answer and its verdict."""

    kind: str
    """known-good, again, mutated, called wrong, perturbed, or the name of a trivial program."""
    verdict: Verdict
    cpu_s: float = 0.0
    """CPU seconds of the slowest test."""
    checkers: Mapping[str, bool] = field(default_factory=dict)
    """Whether each choice of task.checker accepts it, if compared."""

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
    """A problem with its findings and graded answers."""

    problem: Problem
    split: str
    findings: list[Finding] = field(default_factory=list)
    answers: list[GradedAnswer] = field(default_factory=list)
    overlap: tuple[str, float] | None = None
    """Most similar problem of the evaluation set, and the overlap."""

    def find(self, name: str, detail: str) -> None:
        assert name in FINDINGS
        self.findings.append(Finding(name, detail))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.findings)

    def of(self, *kinds: str) -> list[GradedAnswer]:
        """Returns the judged answers of these kinds."""
        return [each for each in self.answers if each.kind in kinds and each.judged]

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.problem.id,
            "source": self.problem.source,
            "split": self.split,
            "tier": self.problem.tier,
            "findings": [each._asdict() for each in self.findings],
            "overlap": None if self.overlap is None else {"id": self.overlap[0], "share": self.overlap[1]},
            "answers": [each.as_json() for each in self.answers],
        }
