"""Aligns two tokenizations of a text by bytes, and compares the log-probs of aligned tokens.

    student   |The| ans|wer| is| 4|2|
    teacher   |The| answer| is| 42|        chunks: The | ans+wer | is | 4+2

A chunk is the text between two neighbouring byte offsets where both have a token boundary. By the chain rule its
log-prob is the sum over its tokens, so both models score the same text:

    R = sum of student log-probs - sum of teacher log-probs

TRL's GOLD and AReaL merge log-probs over the same chunks. Each of the chunk's n student tokens gets R / n: the sum over
a completion remains log student - log teacher of its text, whatever the tokenizers, so the reverse KL per token, its
clip and its coefficient mean the same as with one tokenizer, and a chunk of one token gets what it would get there.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["align", "chunk_gaps"]

Chunk = tuple[slice, slice]
"""Positions of the tokens of a chunk: the student's, and the teacher's."""


def align(student: Sequence[bytes], teacher: Sequence[bytes]) -> list[Chunk]:
    """Returns the smallest chunks of two sequences of tokens that start with the same bytes, up to the first byte that
    differs. A token without bytes belongs to the chunk before it; the first chunk has those at the beginning."""
    texts = b"".join(student), b"".join(teacher)
    ends = _tokens_by_end(student), _tokens_by_end(teacher)
    chunks, first, start = list[Chunk](), 0, (0, 0)
    for end in sorted(ends[0].keys() & ends[1].keys() - {0}):
        if texts[0][first:end] != texts[1][first:end]:
            break
        stop = ends[0][end], ends[1][end]
        chunks.append((slice(start[0], stop[0]), slice(start[1], stop[1])))
        first, start = end, stop
    return chunks


def chunk_gaps(chunks: Sequence[Chunk], student: Sequence[float], teacher: Sequence[float]) -> list[float | None]:
    """Returns the share of each student token in log student - log teacher of its chunk; None for tokens in no chunk,
    and in chunks with a log-prob that is not finite."""
    found: list[float | None] = [None] * len(student)
    for mine, theirs in chunks:
        gap = math.fsum(student[mine]) - math.fsum(teacher[theirs])
        if math.isfinite(gap):
            count = mine.stop - mine.start
            found[mine] = [gap / count] * count
    return found


def _tokens_by_end(pieces: Sequence[bytes]) -> dict[int, int]:
    """Byte offset of each token boundary -> number of tokens before it, those without bytes included."""
    return {end: place for place, end in enumerate(accumulate(map(len, pieces)), 1)}
