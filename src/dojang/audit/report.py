"""Report of an audit: summary, tables, JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dojang.audit.checker_choices import CHOICES
from dojang.audit.findings import FINDINGS, Audited

__all__ = ["as_json", "show", "summarize"]

_WORST = 10
_DETAIL = 90
_WRONG = ("perturbed", "mutated", "called wrong")


def summarize(audited: Sequence[Audited]) -> dict[str, Any]:
    """Counts accepted and refused answers, and problems with each finding."""
    good = [answer for each in audited for answer in each.of("known-good")]
    wrong = {kind: [answer for each in audited for answer in each.of(kind)] for kind in _WRONG}
    found = Counter(name for each in audited for name in each.names)
    return {
        "problems": len(audited),
        "without_findings": sum(not each.findings for each in audited),
        "known_good": {
            "answers": len(good),
            "accepted": sum(each.full for each in good),
            "problems": sum(bool(each.of("known-good")) for each in audited),
            "problems_accepted": sum(
                bool(each.of("known-good")) and all(answer.full for answer in each.of("known-good")) for each in audited
            ),
        },
        **{
            kind.replace(" ", "_"): {"answers": len(tried), "refused": sum(not each.full for each in tried)}
            for kind, tried in wrong.items()
        },
        "checkers": _checkers(audited),
        "judge_errors": sum(not answer.judged for each in audited for answer in each.answers),
        "findings": {name: found[name] for name in FINDINGS if found[name]},
    }


def _checkers(audited: Sequence[Audited]) -> dict[str, dict[str, int]]:
    """Counts known-good and known-wrong programs that each choice of task.checker accepts; empty if none was tried."""
    good, wrong = (
        [answer.checkers for each in audited for answer in each.of(kind) if answer.checkers]
        for kind in ("known-good", "called wrong")
    )
    if not good and not wrong:
        return {}
    return {
        name: {
            "known_good_accepted": sum(tried[name] for tried in good),
            "known_good": len(good),
            "known_wrong_accepted": sum(tried[name] for tried in wrong),
            "known_wrong": len(wrong),
        }
        for name in CHOICES
    }


def as_json(about: Mapping[str, Any], audited: Sequence[Audited], *, complete: bool) -> dict[str, Any]:
    return {
        **about,
        "complete": complete,
        **summarize(audited),
        "audited": [each.as_json() for each in audited],
    }


def show(console: Console, report: Mapping[str, Any], audited: Sequence[Audited]) -> None:
    """Prints the tables and the problems with the most severe findings."""
    answers = Table(box=None, pad_edge=False, show_header=False)
    answers.add_column(justify="right")
    answers.add_column(overflow="fold")
    for count, words in _answers(report):
        answers.add_row(count, words)
    console.print(answers, markup=False, highlight=False)
    if report["checkers"]:
        _show_checkers(console, report["checkers"])
    if report["findings"]:
        findings = Table("problems", "finding", "meaning", box=None, pad_edge=False)
        findings.columns[0].justify = "right"
        for name, count in report["findings"].items():
            findings.add_row(f"{count:,}", name, FINDINGS[name])
        console.print()
        console.print(findings, markup=False, highlight=False)
        console.print()
        _show_worst(console, audited)


def _show_checkers(console: Console, checkers: Mapping[str, Mapping[str, int]]) -> None:
    shown = Table(
        "task.checker", "known-good programs accepted", "known-wrong programs accepted", box=None, pad_edge=False
    )
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, counts in checkers.items():
        shares = (f"{counts[f'{kind}_accepted']:,}/{counts[kind]:,}" for kind in ("known_good", "known_wrong"))
        shown.add_row(name, *shares)
    console.print()
    console.print(shown, markup=False, highlight=False)


def _answers(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    good = report["known_good"]
    lines = [(f"{report['problems']:,}", f"problems, {report['without_findings']:,} of them without findings")]
    if good["problems"]:
        said = f"problems whose known-good answers get full marks ({good['accepted']:,}/{good['answers']:,} answers)"
        lines.append((f"{good['problems_accepted']:,}/{good['problems']:,}", said))
    if unknown := report["problems"] - good["problems"]:
        lines.append((f"{unknown:,}", "problems without known-good answers"))
    words = {
        "perturbed": "perturbed answers refused",
        "mutated": "mutated programs refused",
        "called_wrong": "programs that the data call wrong refused",
    }
    for kind, said in words.items():
        if report[kind]["answers"]:
            lines.append((f"{report[kind]['refused']:,}/{report[kind]['answers']:,}", said))
    if report["judge_errors"]:
        lines.append((f"{report['judge_errors']:,}", "answers that could not be judged"))
    return lines


def _show_worst(console: Console, audited: Sequence[Audited]) -> None:
    """Prints problems by severity, then by number of findings."""
    order = list(FINDINGS)
    found = [each for each in audited if each.findings]
    found.sort(key=lambda each: (min(map(order.index, each.names)), -len(each.names)))
    worst = Table("problem", "findings", "most severe", box=None, pad_edge=False)
    for column in worst.columns:
        column.overflow = "fold"
    for each in found[:_WORST]:
        findings = sorted(each.findings, key=lambda finding: order.index(finding.name))
        names = ", ".join(dict.fromkeys(finding.name for finding in findings))
        detail = " ".join(findings[0].detail.split())
        worst.add_row(each.problem.id, names, detail[:_DETAIL] + ("..." if len(detail) > _DETAIL else ""))
    console.print(worst, markup=False, highlight=False)
    if len(found) > _WORST:
        console.print(f"and {len(found) - _WORST:,} more problems", markup=False, highlight=False)
