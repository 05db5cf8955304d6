import re
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import dojang.models.tiny_code
from dojang.data.tiny_programs import TinyProgramsConfig
from dojang.models.catalogue import resolve
from make_tiny_code_model import LETTERS, grade
from make_tiny_model import Evaluation, evaluate, make_tokenizer
from tiny_code_corpus import draw

SHIPPED = Path(dojang.models.tiny_code.__file__).parent


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(SHIPPED)
    return loaded


@pytest.fixture(scope="module")
def evaluation(tokenizer: PreTrainedTokenizerBase) -> Evaluation:
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    return evaluate(model, tokenizer, TinyProgramsConfig(test_size=64).load("test"), seed=0, grade=grade)


def test_the_name_resolves_to_a_small_directory() -> None:
    assert resolve("dojang-tiny-code") == str(SHIPPED)
    assert sum(file.stat().st_size for file in SHIPPED.glob("*") if file.is_file()) < 500_000


def test_names_and_digits_are_single_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("Read x and t. Print x times 79 plus t.")]
    assert pieces == ["Read ", "x", " and ", "t", ". Print ", "x", " times ", "7", "9", " plus ", "t", "."]


def test_the_corpus_leaves_the_test_split_out() -> None:
    rng = Random(1)
    pages = [draw(rng) for _ in range(2000)]
    held_out = {problem.messages[0].content for problem in TinyProgramsConfig(test_size=512).load("test")}
    assert not held_out & {page.question for page in pages}
    assert all(
        re.fullmatch(r"```python\n(\w = (int\()?input\(\)\)?\n){1,2}print\(.+\)\n```", each.response) for each in pages
    )


def test_the_maker_makes_the_shipped_tokenizer(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, draw, LETTERS)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (SHIPPED / name).read_bytes(), name


def test_the_untrained_model_is_rarely_right(evaluation: Evaluation) -> None:
    assert 0.05 < evaluation.right_greedy < 0.4
    assert 0.15 < evaluation.right_sampled < 0.5


def test_groups_have_mixed_rewards(evaluation: Evaluation) -> None:
    assert 0.15 < evaluation.skilled < 0.5
    assert evaluation.right_when_skilled > 0.7
    assert evaluation.mixed_groups > 0.6
