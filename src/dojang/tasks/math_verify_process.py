"""Worker process that compares two answers with math-verify (worker_pool.py).

    {"gold": "\\\\frac12", "text": "... \\\\boxed{0.5}"}  ->  {"correct": true, "answered": true, "boxed": true}
                                                      or  {"gold": false}, {"error": "..."}

In a text the last \\boxed{} counts, or else a formula or number that the text calls the answer. math-verify's time
limits are off, because they need signals; the pool kills a process that hangs.
"""

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from dojang.tasks.worker_process import serve

__all__ = ["last_box", "last_box_end", "verifier"]

REMEMBERED = 4096
SHORT = 200
"""Maximum characters of a cached answer."""

_BOX = re.compile(r"\\boxed\s*\{")


def verifier() -> Callable[[Any], dict[str, Any]]:
    logging.disable(logging.CRITICAL)
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    anchored = [
        LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),
        ExprExtractionConfig(try_extract_without_anchor=False),
    ]

    @lru_cache(REMEMBERED)  # the samples of a group share one reference, and often one answer
    def right(gold: str) -> list[Any]:
        found: list[Any] = parse(f"\\boxed{{{gold}}}", fallback_mode="no_fallback", parsing_timeout=None) or parse(
            gold, fallback_mode="no_fallback", parsing_timeout=None
        )
        return found

    def compared(gold: str, text: str) -> tuple[bool, bool]:
        said = parse(text, extraction_config=anchored, parsing_timeout=None)
        return bool(said), bool(said) and verify(right(gold), said, timeout_seconds=None, raise_on_error=True)

    remembered = lru_cache(REMEMBERED)(compared)

    def judged(question: Any) -> dict[str, Any]:
        gold, text = question["gold"], question["text"]
        if not right(gold):
            return {"gold": False}
        box = last_box(text)
        short = box is not None and len(box) <= SHORT
        answered, correct = remembered(gold, box) if short else compared(gold, box or text)
        return {"correct": correct, "answered": answered, "boxed": box is not None}

    return judged


def last_box(text: str) -> str | None:
    """Returns the last \\boxed{...} with its content."""
    span = _last_span(text)
    return None if span is None else f"\\boxed{text[slice(*span)]}"


def last_box_end(text: str) -> int | None:
    """Returns the position after the last \\boxed{...}."""
    span = _last_span(text)
    return None if span is None else span[1]


def _last_span(text: str) -> tuple[int, int] | None:
    """Returns where the braces of the last \\boxed{...} open and close."""
    found = list(_BOX.finditer(text))
    if not found:
        return None
    start, depth = found[-1].end() - 1, 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if text[place] == "}" and not depth:
            return start, place + 1
    return None  # truncated


if __name__ == "__main__":
    serve(verifier)
