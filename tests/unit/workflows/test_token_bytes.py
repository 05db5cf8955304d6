"""Bytes of tokens, against the texts that tokenizers of several kinds make tokens of."""

import random
from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers import models as tokenizer_models
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dojang import models
from dojang.core.errors import ConfigError
from dojang.workflows.token_bytes import PROBE, TokenBytes
from other_tokenizer import other_tokenizer

PACKAGED = ("smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct", "gemma-3-270m")


def texts() -> Iterator[str]:
    draw = random.Random(0)
    yield PROBE
    yield " <|im_end|> <0x41>▁ Ġ"
    for _ in range(50):
        yield "".join(draw.choice("ab 1\n\té日🙂∑") for _ in range(draw.randint(1, 30)))


def spelled(bytes_of: TokenBytes, tokens: list[int]) -> bytes:
    pieces = bytes_of.spell(tokens)
    assert None not in pieces
    return b"".join(each for each in pieces if each is not None)


def sentencepiece(*, prefix: bool) -> PreTrainedTokenizerBase:
    """BPE with "▁" for a space and tokens for bytes, as Llama 2 (with a space before a text) and Gemma have it."""
    alphabet = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abdefinorxtu", "▁a", "ab"]
    vocab = {token: id for id, token in enumerate(alphabet)}
    bpe = Tokenizer(
        tokenizer_models.BPE(vocab, [("▁", "a"), ("a", "b")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    replace = normalizers.Replace(" ", "▁")
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    bpe.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, unk_token="<unk>")


def metaspace() -> PreTrainedTokenizerBase:
    bpe = Tokenizer(tokenizer_models.BPE(unk_token="<unk>"))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.BpeTrainer(special_tokens=["<unk>"], vocab_size=200, show_progress=False)
    bpe.train_from_iterator([PROBE, "a b 1 é 日 🙂 ∑\n\t"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, unk_token="<unk>")


@pytest.mark.parametrize("name", ["dojang-tiny", "dojang-tiny-code", *PACKAGED])
def test_tokens_of_models_spell_the_text(name: str) -> None:
    if (source := models.local(name)) is None:
        pytest.skip(f"{name} is not in the cache (DOJANG_CACHE)")
    bytes_of = TokenBytes(AutoTokenizer.from_pretrained(source))
    for text in texts():
        if "▁" not in text or name != "gemma-3-270m":  # there it is a space
            assert spelled(bytes_of, bytes_of.encode(text)) == text.encode()


@pytest.mark.parametrize("prefix", [False, True])
def test_sentencepiece_tokens_spell_the_text(prefix: bool) -> None:
    bytes_of = TokenBytes(sentencepiece(prefix=prefix))
    for text in texts():
        if "▁" not in text:
            assert spelled(bytes_of, bytes_of.encode(text)) == text.encode()


def test_metaspace_tokens_spell_the_text() -> None:
    bytes_of = TokenBytes(metaspace())
    assert spelled(bytes_of, bytes_of.encode("return x + 12")) == b"return x + 12"


def test_special_tokens_are_no_text() -> None:
    tokenizer = other_tokenizer()
    bytes_of = TokenBytes(tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|turn_end|>")
    assert tokenizer.encode("is<|turn_end|>")[-1] == end
    assert end not in bytes_of.encode("is<|turn_end|>")
    assert bytes_of.is_special(end)
    assert bytes_of.spell([end, len(tokenizer) + 5]) == [None, None]


def test_a_tokenizer_that_changes_texts_is_refused() -> None:
    words = Tokenizer(tokenizer_models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    lower = other_tokenizer()
    lower.backend_tokenizer.normalizer = normalizers.Lowercase()
    prefixed = other_tokenizer()
    prefixed.backend_tokenizer.post_processor = processors.ByteLevel()
    prefixed.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    for tokenizer in (PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]"), lower, prefixed):
        with pytest.raises(ConfigError, match="cannot be told"):
            TokenBytes(tokenizer)
