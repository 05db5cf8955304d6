"""Stop conditions of tasks: where a completion ends because its answer is complete, and where answers end.

    answer line    the line break after the first line that begins with ####: no later line is the answer line
    program        the line break after the first block of code; only for prompts that ask for one block
    fence          the line break after the first fenced block of a language, for an environment that runs it
    next turn      an invented next turn after an answer: a line that begins with "User:" or "Human:", [INST], or a
                   token of a chat template, outside of blocks of code

The first two end completions as soon as they can be graded. The program that counts is in the last block (extract.py),
so ending at the first one would cut the answers of models that show parts before the whole, and of models that think
without a tag. The next turn cuts nothing that counts: the text after it is never the answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dojang.tasks.answers import ANSWER_MARK, answer_line_end
from dojang.tasks.extract import NEXT_TURNS, SPELLINGS, BlockScan, final_answer_span
from dojang.tasks.math_verify_process import last_box
from dojang.types import StopLine

__all__ = [
    "AFTER_ANSWER_LINE",
    "AFTER_FIRST_PROGRAM",
    "TURN_AFTER_BOX",
    "TURN_AFTER_PROGRAM",
    "TURN_AFTER_TAGS",
    "or_after_fence",
    "program_end",
    "tags_end",
]

_ANY_LANGUAGE = frozenset(name for names in SPELLINGS.values() for name in names)
"""A stop condition is the same for all problems of a run, whatever their languages."""
_FENCES = ("```", "~~~")


@dataclass(frozen=True, slots=True)
class _AfterFence:
    """Returns the end of the first fenced block of a language, or of the answer if it comes first."""

    names: frozenset[str]
    answer_end: Callable[[str], int | None] | None
    whole_line: bool

    def __call__(self, text: str) -> int | None:
        fence = _block_end(text, partial(BlockScan.first_end, fenced=True), self.names)
        if self.whole_line:
            fence = _complete(text, fence)
        answer = None if self.answer_end is None else self.answer_end(text)
        if answer is None or (fence is not None and fence < answer):
            return fence
        in_fence = BlockScan(text[:answer], self.names).in_fence  # such as an answer line in a comment
        return fence if in_fence else answer


def or_after_fence(line: StopLine | None, language: str) -> StopLine:
    """Returns a stop condition that also ends at the first fenced block of a language, for environments that run it."""
    names = SPELLINGS[language]
    if line is None:
        return StopLine(_FENCES, _AfterFence(names, None, whole_line=True), whole_line=True)
    return StopLine((*line.begins, *_FENCES), _AfterFence(names, line.end, line.whole_line), line.whole_line)


def program_end(text: str) -> int | None:
    """Returns the end of the last line of the program's block; None without a program."""
    return _block_end(text, BlockScan.program_end)


def tags_end(text: str) -> int | None:
    """Returns the position after the last </answer>; None without an <answer> before it."""
    start, mark, _ = text.rpartition("</answer>")
    return len(start) + len(mark) if mark and "<answer>" in start else None


def _complete_answer_line(text: str) -> int | None:
    return _complete(text, answer_line_end(text))


def _complete_program(text: str) -> int | None:
    return _complete(text, _block_end(text, BlockScan.first_end))


def _complete(text: str, end: int | None) -> int | None:
    """Returns the end of a line only if a line break follows: else the line may go on."""
    return end if end is not None and "\n" in text[end:] else None


def _block_end(
    text: str, closed: Callable[[BlockScan], int | None], names: frozenset[str] = _ANY_LANGUAGE
) -> int | None:
    span = final_answer_span(text)
    at = None if span is None else closed(BlockScan(text[slice(*span)], names))
    if span is None or at is None:
        return None
    line_break = text.find("\n", span[0] + at)
    return line_break if line_break >= 0 else len(text)


def _turn_after_program(text: str) -> int | None:
    return _turn(text, lambda answer, scan: scan.program() is not None)


def _turn_after_box(text: str) -> int | None:
    return _turn(text, lambda answer, scan: last_box(answer) is not None)


def _turn_after_tags(text: str) -> int | None:
    return _turn(text, lambda answer, scan: tags_end(answer) is not None)


def _turn(text: str, has_answer: Callable[[str, BlockScan], bool]) -> int | None:
    """Returns the position at which an invented next turn starts, if the text before it has an answer."""
    span = final_answer_span(text)
    if span is None:
        return None
    start, end = span
    scan = BlockScan(text[start:end], _ANY_LANGUAGE)
    if scan.turn is not None and not scan.unclosed_code:
        end = start + scan.turn
    return end if end < len(text) and has_answer(text[start:end], scan) else None


AFTER_ANSWER_LINE = StopLine((ANSWER_MARK,), _complete_answer_line, whole_line=True)
AFTER_FIRST_PROGRAM = StopLine((*_FENCES, "</code>"), _complete_program, whole_line=True)
TURN_AFTER_PROGRAM = StopLine(NEXT_TURNS, _turn_after_program)
TURN_AFTER_BOX = StopLine(NEXT_TURNS, _turn_after_box)
TURN_AFTER_TAGS = StopLine(NEXT_TURNS, _turn_after_tags)
