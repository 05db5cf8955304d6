"""Bytes of a tokenizer's tokens, to compare texts that two tokenizers split differently.

Bytes and not characters: a byte-level BPE token may hold a part of a character, or parts of two. They follow from the
tokenizer's decoder: byte-level (GPT-2, Llama 3, Qwen) or SentencePiece's with "▁" for a space (Gemma, Mistral).
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError

__all__ = ["PROBE", "TokenBytes", "special_tokens"]

PROBE = "def f(x):\n    return x + 1234567890  # naïve café, 日本語, ∑ ≤ 0.5\n\n\tQ: What is 12 * (3 - 4)? A: -12.\n"
"""Text whose tokens differ between tokenizers."""
_KNOWN = {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
_RAW_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """The bytes that each token of a tokenizer stands for."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ConfigError for a tokenizer whose tokens do not spell the text that they were made of."""
        self._tokenizer = tokenizer
        self._special = special_tokens(tokenizer)
        self._decoders = list(_decoders(tokenizer))
        kinds = {each["type"] for each in self._decoders}
        self._byte_level, self._byte_fallback = "ByteLevel" in kinds, "ByteFallback" in kinds
        self._strips = any(map(_strips_first_space, self._decoders))
        self._bytes_of = cache(self._bytes)
        tokens = self.encode(PROBE)
        known = bool(kinds) and not kinds - _KNOWN
        if not known or b"".join(each or b"" for each in self.spell(tokens)) != PROBE.encode():
            reason = "they spell another text than was tokenized, as with a normalizer that changes letters"
            raise ConfigError(
                f"the bytes of the tokens of {tokenizer.name_or_path} cannot be told "
                f"({reason if known else 'decoder: ' + (', '.join(sorted(kinds)) or 'none')}), so texts of two "
                "tokenizers cannot be compared; choose a model with a byte-level or SentencePiece tokenizer that keeps "
                "the text, or a teacher with the student's tokenizer"
            )

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text. Names of special tokens in it stay text: a model only wrote their letters."""
        settings = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        found: list[int] = self._tokenizer(text, **settings)["input_ids"]
        return found

    def spell(self, tokens: Sequence[int]) -> list[bytes | None]:
        """Returns the bytes of each token of a text; None for special tokens and IDs without a token."""
        found = list(map(self._bytes_of, tokens))
        if self._strips and found and found[0] is not None:
            found[0] = found[0].removeprefix(b" ")
        return found

    def vocabulary(self) -> list[bytes | None]:
        """Returns the bytes of every token, by ID; None for special tokens and IDs without a token. A space that the
        tokenizer puts before a text counts."""
        return list(map(self._bytes_of, range(max(self._tokenizer.get_vocab().values()) + 1)))

    def is_special(self, token: int) -> bool:
        """Reports whether a token is no text, such as EOS."""
        return token in self._special

    def _bytes(self, token: int) -> bytes | None:
        written = None if token in self._special else self._tokenizer.convert_ids_to_tokens(token)
        return self._spell(written) if isinstance(written, str) else None

    def _spell(self, token: str) -> bytes:
        if self._byte_level:
            known = [_BYTES.get(letter) for letter in token]
            return token.encode() if None in known else bytes(each for each in known if each is not None)
        if self._byte_fallback and (raw := _RAW_BYTE.fullmatch(token)):
            return bytes([int(raw[1], 16)])
        for each in self._decoders:
            if each["type"] == "Replace" and "String" in each["pattern"]:
                token = token.replace(each["pattern"]["String"], each["content"])
            if each["type"] == "Metaspace":
                token = token.replace(each["replacement"], " ")
        return token.encode()


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Returns the tokens that are no text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(tokenizer.all_special_ids) | {token for token, each in added.items() if each.special}


def _decoders(tokenizer: PreTrainedTokenizerBase) -> Iterable[dict[str, Any]]:
    """Settings of the decoders that the tokenizer applies to its tokens, in order; none if it is not a Rust one."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return []
    found = json.loads(decoder.__getstate__())
    return found["decoders"] if found["type"] == "Sequence" else [found]


def _strips_first_space(decoder: dict[str, Any]) -> bool:
    """Whether the decoder removes the space that the tokenizer puts before a text."""
    if decoder["type"] == "Metaspace":
        return bool(decoder.get("prepend_scheme", "always") != "never")
    return bool(decoder["type"] == "Strip" and decoder["content"] == " " and decoder["start"] > 0)


def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for letters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_letters()
