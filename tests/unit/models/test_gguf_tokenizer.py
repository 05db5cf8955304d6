"""Tokenizers of several families, written to GGUF metadata as llama.cpp does: the same text gives the same ids."""

from types import SimpleNamespace

import pytest
from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, GemmaTokenizer, GPT2Tokenizer, Qwen2Tokenizer

from dojang.core.errors import ModelError
from dojang.models.gguf_tokenizer import tokenizer_of

CORPUS = [
    "The quick brown fox didn't jump over 12 lazy dogs in 2025; it WASN'T its day.",
    "def add(a, b):\n    return a + b  # adds 123 and 4567\n\n\nprint(add(1, 22))\n",
    "naïve café Ångström e\u0301tude 東京は 日本の首都 🚀🚀 ½ ²",
    "  leading, trailing   \t tabs\r\n and  '  quotes ''  I'LL we'Ve  ///\n",
]
TEXTS = [
    *CORPUS,
    "",
    " ",
    "  ",
    "\n\n\n\n",
    "x\n\n1. a  12",
    "2025 = 45*45 1234567",
    "hello<|im_end|>\n<|im_start|>user\nHi 3",
    "e\u0301 vs \u00e9; camelCaseWords HTTPServer/ path//to\n",
]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""From the tokenizer.json of Llama 3, gpt-4o and Mistral Nemo."""


def learned(pre):
    """(vocabulary, merges) of a byte-level BPE over the corpus; the specials are its last tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    import json

    found = json.loads(tokenizer.to_str())["model"]
    return found["vocab"], [tuple(pair) for pair in found["merges"]]


def split(pattern):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def file_of(vocabulary, merges, pre, **changes):
    """A file with the metadata that llama.cpp writes for a byte-level tokenizer, filled up with two tokens."""
    tokens = sorted(vocabulary, key=vocabulary.__getitem__) + SPECIALS + ["<tool>"]
    count = len(tokens)
    kinds = [TokenType.NORMAL] * len(vocabulary) + [TokenType.CONTROL] * 3 + [TokenType.USER_DEFINED]
    first = len(vocabulary)
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, f"[PAD{count}]", f"[PAD{count + 1}]"],
        "tokenizer.ggml.token_type": [int(each) for each in [*kinds, TokenType.UNUSED, TokenType.UNUSED]],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": first,
        "tokenizer.ggml.eos_token_id": first + 2,
        "tokenizer.ggml.padding_token_id": first,
    }
    values = {key: value for key, value in (values | changes).items() if value is not None}
    return SimpleNamespace(path="m.gguf", architecture="llama", metadata=values, require=lambda key: 4096)


def loaded(file, folder, model_type="llama"):
    """The tokenizer as AutoTokenizer loads it beside a config.json."""
    tokenizer_of(file).save_pretrained(folder)
    (folder / "config.json").write_text(f'{{"model_type": "{model_type}"}}')
    return AutoTokenizer.from_pretrained(folder)


def assert_same(ours, theirs):
    for text in [*TEXTS, "use <tool> now"]:
        ids = theirs(text).input_ids
        assert ours(text).input_ids == ids, text
        assert ours.decode(ids) == theirs.decode(ids), text
    assert len(ours) == len(theirs)


def with_specials(tokenizer):
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIALS})
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


def test_qwen2(tmp_path):
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    vocabulary, merges = learned(split(PRETOKENIZE_REGEX))
    names = {"unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    theirs = with_specials(Qwen2Tokenizer({**vocabulary, "<|endoftext|>": len(vocabulary)}, merges, **names))
    file = file_of(vocabulary, merges, "qwen2", **{"tokenizer.ggml.add_bos_token": False})
    ours = loaded(file, tmp_path, "qwen2")
    assert_same(ours, theirs)
    assert ours.convert_ids_to_tokens(ours("2025").input_ids) == list("2025")
    assert (ours.eos_token, ours.pad_token) == ("<|im_end|>", "<|endoftext|>")


@pytest.mark.parametrize(
    ("name", "pattern", "bos"),
    [("llama-bpe", LLAMA3, True), ("tekken", TEKKEN, True), ("gpt-4o", GPT4O, False), ("dbrx", LLAMA3, False)],
)
def test_byte_level_tokenizers_with_a_pattern(name, pattern, bos, tmp_path):
    vocabulary, merges = learned(split(pattern))
    merges = merges[:-20]  # words that no merge makes: they are tokens only if merges are ignored for whole words
    backend = Tokenizer(models.BPE(dict(vocabulary), merges, ignore_merges=bos))
    backend.pre_tokenizer = split(pattern)
    backend.decoder = decoders.ByteLevel()
    if bos:
        first = ("<|endoftext|>", len(vocabulary))
        backend.add_special_tokens(["<|endoftext|>"])
        backend.post_processor = processors.TemplateProcessing(single=[first[0], "$A"], special_tokens=[first])
    from transformers import PreTrainedTokenizerFast

    theirs = with_specials(PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False))
    assert_same(loaded(file_of(vocabulary, merges, name), tmp_path), theirs)


def test_gpt2(tmp_path):
    vocabulary, merges = learned(pre_tokenizers.ByteLevel(add_prefix_space=False))
    names = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
    theirs = with_specials(GPT2Tokenizer({**vocabulary, "<|endoftext|>": len(vocabulary)}, merges, **names))
    assert_same(loaded(file_of(vocabulary, merges, "gpt-2"), tmp_path), theirs)


def test_smollm_splits_digits_before_words(tmp_path):
    digits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    vocabulary, merges = learned(pre_tokenizers.Sequence(digits))
    ours = loaded(file_of(vocabulary, merges, "smollm"), tmp_path)
    assert [ours.decode([each]) for each in ours("a  12").input_ids][-3:] == ["  ", "1", "2"]


def test_the_file_decides_about_bos_and_eos(tmp_path):
    vocabulary, merges = learned(split(LLAMA3))
    both = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    first = len(vocabulary)
    ids = loaded(file_of(vocabulary, merges, "dbrx", **both), tmp_path)("a").input_ids
    assert ids == [first, vocabulary["a"], first + 2]
    never = {"tokenizer.ggml.add_bos_token": False}
    assert loaded(file_of(vocabulary, merges, "llama-bpe", **never), tmp_path)("a").input_ids == [vocabulary["a"]]


PIECES = ["▁", "t", "h", "e", "▁t", "he", "▁the", "▁a", "a", "n", "▁an", "d", "▁and", "▁▁", "▁▁▁", "\n", "1", "2", "12"]


def sentencepiece(architecture, **changes):
    """A file with a SentencePiece vocabulary: control tokens, bytes, then pieces with falling scores."""
    control = ["<unk>", "<s>", "</s>", "<|end|>"]
    tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    kinds = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 3, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * len(PIECES)]
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(each) for each in kinds],
        "tokenizer.ggml.scores": [0.0] * 260 + [-float(number) for number in range(len(PIECES))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return SimpleNamespace(path="m.gguf", architecture=architecture, metadata=values | changes, require=lambda key: 64)


def pieces(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)


def test_llama2_begins_with_a_space_and_falls_back_to_bytes(tmp_path):
    tokenizer = loaded(sentencepiece("llama"), tmp_path)
    assert pieces(tokenizer, "the 12") == ["<s>", "▁the", "▁", "12"]
    assert pieces(tokenizer, " the") == ["<s>", "▁", "▁the"]
    assert pieces(tokenizer, "é") == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer("the and é").input_ids, skip_special_tokens=True) == "the and é"


def test_merges_are_in_the_order_of_scores(tmp_path):
    """`▁t` + `he` makes `▁the`; with a better score of `th`, that comes first and leaves `e` alone."""
    file = sentencepiece("llama")
    file.metadata["tokenizer.ggml.tokens"].append("th")
    file.metadata["tokenizer.ggml.token_type"].append(int(TokenType.NORMAL))
    file.metadata["tokenizer.ggml.scores"].append(1.0)
    assert pieces(loaded(file, tmp_path), "the") == ["<s>", "▁", "th", "e"]


def test_phi3_removes_spaces_after_its_special_tokens(tmp_path):
    tokenizer = loaded(sentencepiece("phi3"), tmp_path, "phi3")
    assert pieces(tokenizer, "<|end|>  \n the")[:2] == ["<s>", "<|end|>"]
    assert "▁▁" not in pieces(tokenizer, "<|end|>   the")
    kept = loaded(sentencepiece("llama"), tmp_path)
    assert pieces(kept, "<|end|>\nthe")[2] != pieces(tokenizer, "<|end|>\nthe")[2]


def test_gemma(tmp_path):
    """Its tokens of several spaces are user-defined, which llama.cpp writes with spaces; its merges follow the ids."""
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    runs = ["\n\n", "\n\n\n", "\n\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁"]
    normal = ["\n", "▁", "t", "h", "e", "d", "a", "n", "he", "▁t", "▁the", "▁a", "▁and", "nd", "1", "2", "\t"]
    tokens = [*control, *runs, *(f"<0x{byte:02X}>" for byte in range(256)), *normal]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [
        (token[:cut], token[cut:])
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    theirs = GemmaTokenizer(vocabulary, merges)
    theirs.add_tokens([AddedToken(each, normalized=False) for each in runs])  # as in its tokenizer.json
    written = [*control, *(each.replace("▁", " ") for each in runs), *tokens[len(control) + len(runs) :]]
    kinds = [TokenType.CONTROL] * 5 + [TokenType.USER_DEFINED] * 6 + [TokenType.BYTE] * 256
    kinds += [TokenType.NORMAL] * len(normal)
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": written,
        "tokenizer.ggml.token_type": [int(each) for each in kinds],
        "tokenizer.ggml.scores": [-1000.0] * len(written),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }
    file = SimpleNamespace(path="m.gguf", architecture="gemma3", metadata=values, require=lambda key: 64)
    ours = loaded(file, tmp_path, "gemma3_text")
    for text in ("the and", "  the   and    12", "\n\n\n\n\nthe", " a\tb é", "the\n\nand", "<bos>the<eos>", "     "):
        expected = theirs(text).input_ids
        expected = expected if expected[:1] == [2] and not text.startswith("<bos>") else [2, *expected]
        assert ours(text).input_ids == expected, text
        assert ours.decode(expected, skip_special_tokens=True) == theirs.decode(expected, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer.ggml.pre": "chameleon"}, "splits text like 'chameleon'.*known are gpt-2, smollm.*directory"),
        ({"tokenizer.ggml.pre": "default"}, "splits text like 'default'"),
        ({"tokenizer.ggml.pre": None}, "splits text like 'default'"),
        ({"tokenizer.ggml.model": "t5"}, "has a tokenizer of kind 't5'"),
        ({"tokenizer.ggml.token_type": None}, "has no tokens, or not their types"),
    ],
)
def test_other_tokenizers_are_refused(changes, said):
    with pytest.raises(ModelError, match=said):
        tokenizer_of(file_of({"a": 0, "b": 1}, [], "qwen2", **changes))


def test_nfc_is_normalized_like_the_original():
    vocabulary, merges = learned(split(LLAMA3))
    ours = tokenizer_of(file_of(vocabulary, merges, "qwen2"))
    assert ours("e\u0301").input_ids == ours(normalizers.NFC().normalize_str("e\u0301")).input_ids
