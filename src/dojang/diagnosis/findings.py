"""Results of a diagnosis: findings with their evidence, and the verdict on the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Diagnosis", "Example", "Finding", "Learning", "Severity", "Verdict"]


class Severity(StrEnum):
    """How much a finding matters, in order."""

    FAULT = "fault"
    """The run cannot learn, or its result is not what the accuracy says."""
    WARNING = "warning"
    """The run learns less than it could, or its result is in doubt."""
    NOTE = "note"
    """Cost and precision; no sign of a fault."""


@dataclass(frozen=True, slots=True)
class Example:
    """A sample that shows a finding."""

    id: str
    """File and row: train-000003 problem index."""
    text: str
    """Excerpt of the completion."""
    remark: str
    """Outcome and reward, or the judge's error."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Symptom of a run, with evidence and remedy."""

    name: str
    """Stable name of the rule, for JSON and docs/explain.md."""
    severity: Severity
    title: str
    """The finding in one line, with its main figure."""
    evidence: Sequence[str]
    """Figures with their steps."""
    advice: Sequence[str]
    """Settings to change, the likeliest remedy first."""
    examples: Sequence[Example] = ()
    explains: frozenset[str] = frozenset()
    """Names of findings that are consequences of this one; they are left out."""


class Learning(StrEnum):
    """Change of the held-out accuracy over a run."""

    BETTER = "better"
    SAME = "not better"
    WORSE = "worse"
    SOLVED = "solved before training"
    UNCLEAR = "unclear"
    """Higher, but the interval of the difference contains zero, or too few problems to tell."""
    UNKNOWN = "unknown"
    """Fewer than two evaluations."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Change of the held-out accuracy, and further figures."""

    learning: Learning
    headline: str
    facts: Sequence[str]
    """Further figures: reward, steps, time."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Verdict and findings of a run, the most severe first."""

    status: str
    """finished, interrupted, failed; running while there is no summary."""
    verdict: Verdict
    findings: Sequence[Finding]

    def of_severity(self, *severities: Severity) -> list[Finding]:
        """Findings of these severities."""
        return [each for each in self.findings if each.severity in severities]
