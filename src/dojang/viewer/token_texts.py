"""Texts and values of the tokens of a sample."""

import codecs
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dojang.core.errors import RunDirError
from dojang.core.run_files import FileInfo, RunFiles

__all__ = ["TokenTexts", "decode_tokens", "token_rows"]

_UNREADABLE = (OSError, KeyError, ValueError, pa.ArrowException, RunDirError)


class TokenTexts:
    """Texts of tokens, from vocabulary.parquet, or vocabulary-ROLE.parquet for a role with another tokenizer."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._read: dict[str, tuple[FileInfo, Any]] = {}

    def of(self, role: str | None, tokens: Sequence[int]) -> list[str] | None:
        """Texts of tokens; None if the run has no vocabulary."""
        vocabulary = self._vocabulary(role)
        if vocabulary is None:
            return None
        known = range(len(vocabulary))
        return decode_tokens(vocabulary[token].as_py() if token in known else None for token in tokens)

    def _vocabulary(self, role: str | None) -> Any:
        try:
            there = self._files.listing()  # a name out of a rollout file is compared with those, and never opened
            info = there.get(f"vocabulary-{role}.parquet") or there.get("vocabulary.parquet")
            if info is None:
                return None
            if (known := self._read.get(info.name)) and known[0] == info:
                return known[1]
            with self._files.open_parquet(info.name) as file:
                found = file.read(columns=["bytes"])["bytes"].cast(pa.binary()).combine_chunks()
        except _UNREADABLE:
            return None
        self._read[info.name] = info, found
        return found


def decode_tokens(parts: Iterable[bytes | None]) -> list[str]:
    """Texts of tokens. A character that is split over tokens is in the last of them; the others show its bytes, as
    does a token that is no text: ⟨e2 80⟩. Tokens without bytes are empty."""
    decoder = codecs.getincrementaldecoder("utf-8")("visible-bytes")
    texts = []
    for part in parts:
        text = decoder.decode(part or b"")
        pending = decoder.getstate()[0] if part else b""
        texts.append(text + (_visible(pending) if pending else ""))
    return texts


def _visible(some: bytes) -> str:
    return f"⟨{some.hex(' ')}⟩"


def _show_bytes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return _visible(error.object[error.start : error.end]), error.end


codecs.register_error("visible-bytes", _show_bytes)


def token_rows(
    sample: Mapping[str, Any], texts: Sequence[str] | None, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """One object per token. `values` has the trainer's log-probs and entropies, one per sampled token."""
    tokens, mask = sample["tokens"] or [], sample["mask"] or []
    logprobs = sample["logprobs"] or []
    trainer, entropies = (_next_of(values.get(name)) for name in ("trainer_logprobs", "entropies"))
    versions = _versions(sample, len(tokens))
    rows = []
    for place, token in enumerate(tokens):
        sampled = place < len(mask) and bool(mask[place])
        rows.append(
            {
                "id": token,
                "text": texts[place] if texts else None,
                "sampled": sampled,
                "logprob": _short(logprobs[place]) if sampled and place < len(logprobs) else None,
                "trainer_logprob": next(trainer) if sampled else None,
                "entropy": next(entropies) if sampled else None,
                "version": versions[place] if sampled else None,
            }
        )
    return rows


def _versions(sample: Mapping[str, Any], count: int) -> list[int | None]:
    found: list[int | None] = [sample["version"]] * count
    for span in sample["spans"] or ():
        start, end = max(span["start"] or 0, 0), min(span["end"] or 0, count)
        found[start:end] = [span["version"]] * max(end - start, 0)
    return found


def _next_of(values: Sequence[float | None] | None) -> Iterator[float | None]:
    """Values in order, then None for ever."""
    for value in values or ():
        yield _short(value)
    while True:
        yield None


def _short(value: float | None) -> float | None:
    """Six digits, which is all that a page shows of a million values; None for NaN."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
