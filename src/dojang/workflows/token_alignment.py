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

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ends", "align", "chunk_gaps"]

Ends = NDArray[np.int64]
"""[chunks, 2]: numbers of the student's and of the teacher's tokens up to the end of each chunk."""


def align(student: Sequence[bytes], teacher: Sequence[bytes]) -> Ends:
    """Returns the ends of the smallest chunks of two sequences of tokens that start with the same bytes, up to the
    first byte that differs. A token without bytes belongs to the chunk before it; the first chunk has those at the
    beginning."""
    ends = _byte_ends(student), _byte_ends(teacher)
    shared = np.intersect1d(*ends)
    shared = shared[(shared > 0) & (shared <= _same_bytes(b"".join(student), b"".join(teacher)))]
    return np.stack([np.searchsorted(each, shared, side="right") for each in ends], axis=1)


def chunk_gaps(ends: Ends, student: Sequence[float], teacher: Sequence[float]) -> list[float | None]:
    """Returns the share of each student token in log student - log teacher of its chunk; None for tokens in no chunk,
    and in chunks with a log-prob that is not finite."""
    found: list[float | None] = [None] * len(student)
    if not len(ends):
        return found
    starts, (stop, their_stop) = np.vstack([[(0, 0)], ends[:-1]]), ends[-1]
    mine = np.add.reduceat(np.asarray(student, np.float64)[:stop], starts[:, 0])
    theirs = np.add.reduceat(np.asarray(teacher, np.float64)[:their_stop], starts[:, 1])
    counts = ends[:, 0] - starts[:, 0]
    with np.errstate(invalid="ignore"):  # the difference of two infinities
        gaps = np.repeat((mine - theirs) / counts, counts)
    finite = np.isfinite(gaps)
    found[:stop] = [gap if known else None for gap, known in zip(gaps.tolist(), finite.tolist(), strict=True)]
    return found


def _byte_ends(pieces: Sequence[bytes]) -> NDArray[np.int64]:
    """Byte offset of the end of each token."""
    return np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)))


def _same_bytes(one: bytes, other: bytes) -> int:
    """Number of leading bytes that two texts share."""
    if one == other:
        return len(one)
    size = min(len(one), len(other))
    differ = np.flatnonzero(np.frombuffer(one[:size], np.uint8) != np.frombuffer(other[:size], np.uint8))
    return int(differ[0]) if len(differ) else size
