"""A few completions of an evaluation, for the console of a run."""

from collections.abc import Sequence
from itertools import chain, zip_longest

from rich.text import Text

from dojang.core.safe_text import one_line, safe_text, shorten
from dojang.types import Group, Outcome, Problem, Sample

__all__ = ["choose", "compact", "detailed"]

LAST_LINES = 4
"""Lines of a completion that are shown in a terminal."""
WIDTH = 100
"""Characters of a part of a line; a log of CI stays short."""


def choose(groups: Sequence[Group], number: int) -> list[tuple[Problem, Sample]]:
    """Takes turns between completions that were accepted and others, in the order of the problems: evaluations of one
    run show the same problems, as far as their outcomes allow."""
    found = [(group.problem, sample) for group in groups for sample in (*group.samples, *group.unjudged)]
    accepted = [each for each in found if each[1].verdict.outcome is Outcome.ACCEPTED]
    others = [each for each in found if each[1].verdict.outcome is not Outcome.ACCEPTED]
    return [each for each in chain(*zip_longest(accepted, others)) if each is not None][:number]


def compact(problem: Problem, sample: Sample) -> Text:
    """One line: outcome, problem, end of the completion, reason."""
    line = _heading(problem, sample).append(f": {one_line(sample.text, WIDTH, end=True)}")
    reason = one_line(sample.verdict.detail, WIDTH)
    return line.append(f" ({reason})" if reason else "")


def detailed(problem: Problem, sample: Sample) -> Text:
    """Several lines: outcome and problem with its question, last lines of the completion, reason."""
    lines = _heading(problem, sample).append(f": {one_line(problem.messages[-1].content, WIDTH)}")
    text = sample.text.strip()
    last = text[-LAST_LINES * WIDTH :].split("\n")[-LAST_LINES:]
    cut = len("\n".join(last)) < len(text)
    for number, line in enumerate(last):
        lines.append(f"\n    │ {'...' if cut and number == 0 else ''}{safe_text(line)}")
    reason = safe_text(shorten(sample.verdict.detail, 2 * WIDTH, LAST_LINES)).replace("\n", "\n    ")
    return lines.append(f"\n    {reason}" if reason else "")


def _heading(problem: Problem, sample: Sample) -> Text:
    accepted = sample.verdict.outcome is Outcome.ACCEPTED
    role = "" if sample.role == "policy" else f"{sample.role}  "
    line = Text("  ").append(str(sample.verdict.outcome), "green" if accepted else "red")
    return line.append(f"  {role}{one_line(problem.id, WIDTH)}")
