"""The vocabulary of a run directory: bytes of tokens without a tokenizer."""

from pathlib import Path

import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders
from tokenizers import models as tokenizer_models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dojang import models
from dojang.build.vocabulary import write_vocabularies
from dojang.core.run_dir import RunDir
from dojang.workflows.token_bytes import PROBE
from other_tokenizer import other_tokenizer


def read(path: Path) -> dict[str, list]:
    return pq.read_table(path).to_pydict()


def test_bytes_of_tokens_join_to_the_text(tmp_path: Path) -> None:
    for name in ("dojang-tiny", "dojang-tiny-code"):
        tokenizer, directory = AutoTokenizer.from_pretrained(models.resolve(name)), RunDir(tmp_path / name)
        write_vocabularies(directory, {"policy": tokenizer})
        found = read(directory.vocabulary())
        assert len(found["bytes"]) == max(tokenizer.get_vocab().values()) + 1
        tokens = tokenizer.encode(PROBE, add_special_tokens=False)
        assert b"".join(found["bytes"][token] for token in tokens) == PROBE.encode()
        assert found["bytes"][tokenizer.eos_token_id] == tokenizer.eos_token.encode()
        assert {place for place, each in enumerate(found["special"]) if each} >= set(tokenizer.all_special_ids)
        assert not found["special"][tokens[0]]


def test_a_role_has_a_file_only_for_another_tokenizer(tmp_path: Path, tokenizer) -> None:
    directory = RunDir(tmp_path)
    write_vocabularies(directory, {"coder": tokenizer, "tester": tokenizer})
    assert [path.name for path in tmp_path.iterdir()] == ["vocabulary.parquet"]
    write_vocabularies(directory, {"coder": tokenizer, "tester": other_tokenizer()})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vocabulary-tester.parquet", "vocabulary.parquet"]
    assert read(directory.vocabulary("tester")) != read(directory.vocabulary())


def test_a_file_that_is_there_is_kept_and_a_missing_one_is_written_again(tmp_path: Path, tokenizer) -> None:
    directory = RunDir(tmp_path)
    write_vocabularies(directory, {"policy": tokenizer})
    first = directory.vocabulary().stat()
    write_vocabularies(directory, {"policy": tokenizer})
    assert directory.vocabulary().stat().st_ino == first.st_ino
    directory.vocabulary().unlink()
    write_vocabularies(directory, {"policy": tokenizer})
    assert directory.vocabulary().exists()


def test_a_tokenizer_without_known_bytes_has_the_text_of_each_token(tmp_path: Path) -> None:
    words = Tokenizer(tokenizer_models.WordPiece({"[UNK]": 0, "a": 1, "##b": 3}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    directory = RunDir(tmp_path)
    write_vocabularies(directory, {"policy": PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")})
    found = read(directory.vocabulary())
    assert found["bytes"][:2] == [b"[UNK]", b"a"]
    assert found["special"] == [True, False, False, False]
