"""Tokenizer of a GGUF file, as it was before llama.cpp converted it.

The file has tokens, merges or scores, and the name of a pre-tokenizer. How that one splits text is llama.cpp's code
(src/llama-vocab.cpp) and the original tokenizer.json; a name that is not in the table below is refused, because a
tokenizer that splits otherwise gives a model other tokens than it was trained with.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from dojang.core.errors import ModelError
from dojang.models.gguf_file import GgufFile

__all__ = ["PRE_TOKENIZERS", "tokenizer_of"]

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
"""Types of tokens in a GGUF file."""
_NO_RSTRIP = {"<unk>", "<s>", "<|endoftext|>"}
"""Special tokens of Phi-3 that leave the white space after them (llama.cpp); the others remove it."""
_SPACE = "\u2581"
"""SentencePiece's mark for a space."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """How a byte-level tokenizer splits text before merging."""

    pattern: str | None = None
    """Regular expression of the pieces; None: GPT-2's."""
    digits: bool = False
    """Whether each digit is a piece."""
    nfc: bool = False
    """Whether text is normalized to NFC."""
    whole_words: bool = False
    """Whether a piece that is a token needs no merges (ignore_merges)."""
    bos: bool = False
    """Whether text begins with a BOS token if the file does not say."""


_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_REST_SLASH = _REST.replace(r"[\r\n]*", r"[\r\n/]*")
_TEKKEN = _CASED.replace("%s", "") + r"|\p{N}" + _REST_SLASH
_GPT4O = _CASED.replace("%s", _SUFFIXES + "?") + r"|\p{N}{1,3}" + _REST_SLASH

PRE_TOKENIZERS: Mapping[str, Splitting] = {
    "gpt-2": Splitting(),
    "smollm": Splitting(digits=True),
    "qwen2": Splitting(_QWEN2, nfc=True),
    "deepseek-r1-qwen": Splitting(_QWEN2, nfc=True),
    "llama-bpe": Splitting(_LLAMA3, whole_words=True, bos=True),
    "llama3": Splitting(_LLAMA3, whole_words=True, bos=True),
    "llama-v3": Splitting(_LLAMA3, whole_words=True, bos=True),
    "dbrx": Splitting(_LLAMA3),  # also OLMo 2, Phi-4
    "tekken": Splitting(_TEKKEN, whole_words=True, bos=True),
    "gpt-4o": Splitting(_GPT4O),  # also Phi-4-mini
}
"""Byte-level pre-tokenizers by llama.cpp's name."""


def tokenizer_of(file: GgufFile) -> PreTrainedTokenizerFast:
    """Builds the tokenizer. Raises ModelError if the file does not describe one that can be built exactly."""
    values = file.metadata
    kind, pre = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.pre", "default")
    if not {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type"} <= set(values):
        raise ModelError(f"{file.path} has no tokens, or not their types; convert the model to GGUF again")
    vocabulary = _Vocabulary(values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"])
    match kind:
        case "gpt2" if pre in PRE_TOKENIZERS:
            tokenizer, bos = _byte_level(values, vocabulary, PRE_TOKENIZERS[pre]), PRE_TOKENIZERS[pre].bos
        case "gpt2":
            known = ", ".join(PRE_TOKENIZERS)
            raise ModelError(
                f"{file.path} splits text like {pre!r} (tokenizer.ggml.pre), which is not known here; known are "
                f"{known}. Give a Hugging Face directory of this model instead"
            )
        case "llama":
            is_gemma = file.architecture.startswith("gemma")
            tokenizer, bos = _sentencepiece(values, vocabulary, is_gemma=is_gemma), True
        case _:
            raise ModelError(
                f"{file.path} has a tokenizer of kind {kind!r} (tokenizer.ggml.model); gpt2 and llama can be read. "
                "Give a Hugging Face directory of this model instead"
            )
    keeps = _NO_RSTRIP if (file.architecture, kind) == ("phi3", "llama") else set(vocabulary.control)
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True, rstrip=token not in keeps) for token in vocabulary.control]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in vocabulary.user_defined])
    specials = _specials(values, vocabulary)
    _add_ends(tokenizer, values, specials, bos=bos)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers types this one only in part
        tokenizer_object=tokenizer,
        chat_template=values.get("tokenizer.chat_template"),
        model_max_length=file.require("context_length"),
        clean_up_tokenization_spaces=False,
        **specials,
    )


class _Vocabulary:
    """Tokens of the file, without those that llama.cpp added to have as many as the embedding has rows."""

    def __init__(self, tokens: list[str], kinds: list[int]) -> None:
        filler = re.compile(r"\[PAD\d+\]")
        self.tokens = tokens
        self.kinds = kinds
        self.ids = {
            self.spelling(number): number
            for number, kind in enumerate(kinds)
            if not (kind == _UNUSED and filler.fullmatch(tokens[number]))
        }
        self.control = [tokens[number] for number, kind in enumerate(kinds) if kind in (_CONTROL, _UNKNOWN)]
        self.user_defined = [self.spelling(number) for number, kind in enumerate(kinds) if kind == _USER_DEFINED]

    def spelling(self, number: int) -> str:
        """Spelling in the vocabulary: llama.cpp writes Gemma's tokens of several spaces with real spaces."""
        token = self.tokens[number]
        is_spaces = self.kinds[number] == _USER_DEFINED and len(token) > 1 and not token.strip(" ")
        return _SPACE * len(token) if is_spaces else token


def _byte_level(values: Mapping[str, Any], vocabulary: _Vocabulary, splitting: Splitting) -> Tokenizer:
    merges = [tuple(pair.split(" ", 1)) for pair in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary.ids, merges, ignore_merges=splitting.whole_words))
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    parts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if splitting.digits else []
    if splitting.pattern is not None:
        parts.append(pre_tokenizers.Split(Regex(splitting.pattern), behavior="isolated"))
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(values: Mapping[str, Any], vocabulary: _Vocabulary, *, is_gemma: bool) -> Tokenizer:
    ids = vocabulary.ids
    if is_gemma:  # its merges are in the order of its tokens; the file gives added tokens another score
        ranks = {token: float(-number) for token, number in ids.items()}
    else:
        ranks = {token: values["tokenizer.ggml.scores"][number] for token, number in ids.items()}
    unknown = [vocabulary.tokens[number] for number, kind in enumerate(vocabulary.kinds) if kind == _UNKNOWN]
    special = values.get("tokenizer.ggml.unknown_token_id")
    unk = vocabulary.tokens[special] if special is not None else unknown[0] if unknown else None
    tokenizer = Tokenizer(models.BPE(ids, list(_merges(ids, ranks)), unk_token=unk, fuse_unk=True, byte_fallback=True))
    spaces: list[Any] = [normalizers.Replace(" ", _SPACE)]
    decoding: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if values.get("tokenizer.ggml.add_space_prefix", not is_gemma):
        spaces.insert(0, normalizers.Prepend(_SPACE))
        decoding.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _merges(ids: Mapping[str, int], ranks: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Merges of a SentencePiece vocabulary, which has none: all pairs of tokens that are a token together, the best
    token first."""
    found = []
    for token in ids:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                found.append((-ranks[token], -len(left), -len(right), ids[left], ids[right], left, right))
    found.sort()
    return ((left, right) for *_, left, right in found)


def _specials(values: Mapping[str, Any], vocabulary: _Vocabulary) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    numbers = {ours: values.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in names.items()}
    return {name: vocabulary.spelling(number) for name, number in numbers.items() if number is not None}


def _add_ends(tokenizer: Tokenizer, values: Mapping[str, Any], specials: Mapping[str, str], *, bos: bool) -> None:
    """Makes the tokenizer add BOS and EOS, if the original does."""
    first = values.get("tokenizer.ggml.add_bos_token", bos) and specials.get("bos_token")
    last = values.get("tokenizer.ggml.add_eos_token", False) and specials.get("eos_token")
    if not first and not last:
        return
    before, after = [first] if first else [], [last] if last else []
    second = [*(f"{each}:1" for each in before), "$B:1", *(f"{each}:1" for each in after)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *second],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {first, last} if token],
    )
