"""A diagnosis as text and as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dojang.diagnosis.findings import Diagnosis, Finding, Learning, Severity

__all__ = ["as_json", "as_object", "full_report", "short_report"]

_LOUD = (Severity.FAULT, Severity.WARNING)


def full_report(diagnosis: Diagnosis, name: str) -> str:
    """Everything: verdict, figures, and each finding with evidence, remedies and samples."""
    lines = [f"{name}: {diagnosis.status}", diagnosis.verdict.headline, *diagnosis.verdict.facts, ""]
    if not diagnosis.of_severity(*_LOUD):
        better = diagnosis.verdict.learning in (Learning.BETTER, Learning.SOLVED)
        lines.append("no fault found" if better else "no rule found a fault; this does not show that the run learned")
    for finding in diagnosis.findings:
        lines += ["", *_paragraph(finding)]
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def short_report(diagnosis: Diagnosis, command: str) -> list[str]:
    """Lines for the end of a run: the verdict if it is no success, and faults and warnings with the first remedy."""
    loud = diagnosis.of_severity(*_LOUD)
    if not loud:
        doubtful = diagnosis.verdict.learning in (Learning.SAME, Learning.WORSE, Learning.UNCLEAR)
        stopped = diagnosis.status not in ("finished", "running")
        return [diagnosis.verdict.headline, f"details: {command}"] if doubtful or stopped else []
    return [
        *(f"{each.severity}: {each.title}\n  change: {each.advice[0]}" for each in loud),
        f"evidence and further remedies: {command}",
    ]


def as_object(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain values for JSON."""
    found: dict[str, Any] = asdict(diagnosis)
    for finding in found["findings"]:
        del finding["explains"]
    return found


def as_json(diagnosis: Diagnosis) -> str:
    """One JSON object."""
    return json.dumps(as_object(diagnosis), indent=2)


def _paragraph(finding: Finding) -> Iterator[str]:
    yield f"{finding.severity} ({finding.name}): {finding.title}"
    yield from _list("evidence", finding.evidence)
    yield from _list("change", finding.advice)
    yield from _list("samples", [f"{each.id} [{each.remark}]: {each.text}" for each in finding.examples])


def _list(heading: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield f"  {heading}"
        yield from (f"    - {each}" for each in items)
