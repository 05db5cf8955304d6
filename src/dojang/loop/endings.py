"""Counts completions that were cut at max_tokens, and completions that run on after their answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dojang.types import Group, Metrics, Sample

__all__ = ["MAIN_ROLES", "AnswerEnd", "Endings", "count_endings"]

MAIN_ROLES = ("policy", "coder")
"""Roles of the main policy; metrics of other roles are prefixed with the role's name."""

AnswerEnd = Callable[[str], int | None]
"""Position at which the answer in a text ends; None if it has none (TaskSection.answer_end)."""


@dataclass(frozen=True, slots=True)
class Endings:
    """Numbers of completions of the main policy in a step."""

    samples: int = 0
    cut: int = 0
    """Truncated at max_tokens."""
    after_answer: int = 0
    """With text after the answer."""
    cut_after_answer: int = 0
    """Truncated at max_tokens while they ran on after their answer."""

    def metrics(self) -> Metrics:
        """Shares, beside `response_length/clip_ratio`."""
        if not self.samples:
            return {}
        return {
            "response/text_after_answer": self.after_answer / self.samples,
            "response/cut_after_answer": self.cut_after_answer / self.samples,
        }


def count_endings(groups: Sequence[Group], answer_end: AnswerEnd) -> Endings:
    """Counts how the completions of a step ended."""
    samples = [each for group in groups for each in group.samples if each.role in MAIN_ROLES]
    after = [each for each in samples if _runs_on(each, answer_end)]
    return Endings(len(samples), _cut(samples), len(after), _cut(after))


def _cut(samples: Sequence[Sample]) -> int:
    return sum(each.finish == "length" for each in samples)


def _runs_on(sample: Sample, answer_end: AnswerEnd) -> bool:
    end = answer_end(sample.text)
    # Punctuation and fences after the answer belong to it: `\\boxed{5}$.`
    return end is not None and any(map(str.isalnum, sample.text[end:]))
