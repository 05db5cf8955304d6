import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import dojang.models.tiny
from dojang.data.arithmetic import ArithmeticConfig, is_held_out
from make_tiny_model import Evaluation, evaluate, make_model, make_tokenizer, sample
from tiny_corpus import ANSWER, draw

SHIPPED = Path(dojang.models.tiny.__file__).parent
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(SHIPPED)
    return loaded


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    return loaded


@pytest.fixture(scope="module")
def evaluation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Evaluation:
    return evaluate(model, tokenizer, ArithmeticConfig(test_size=64).load("test"), seed=0)


@pytest.fixture
def torch_settings_restored() -> Iterator[None]:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def test_the_package_stays_small() -> None:
    assert sum(file.stat().st_size for file in SHIPPED.glob("*") if file.is_file()) < 3_000_000


def test_weights_are_half_precision_and_the_vocabulary_fits(tokenizer: PreTrainedTokenizerBase) -> None:
    model = AutoModelForCausalLM.from_pretrained(SHIPPED)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "What is 47 + 86?",
        "naïve Ünïcödé 日本語 🥋🏽 ½²٣",
        "\ttabs\r\n\n  spaces  ",
        "a<|end|>b",
        "\x00\x7f\ufeff",
    ],
)
def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_single_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("What is 1234 + 86?")]
    assert pieces == ["What is ", "1", "2", "3", "4", " + ", "8", "6", "?"]
    assert not [token for token in tokenizer.get_vocab() if re.search(r"\d", token) and len(token) > 1]


def test_shown_work_is_short(tokenizer: PreTrainedTokenizerBase) -> None:
    longest = f"9+9=18, 9+9+1=19\n{ANSWER}198<|end|>"
    assert len(tokenizer.encode(longest)) == 20


def test_the_chat_ends_where_the_assistant_begins(tokenizer: PreTrainedTokenizerBase) -> None:
    turns = [{"role": role, "content": role[0].upper()} for role in ("system", "user", "assistant", "user")]
    chat = "<|system|>S<|end|><|user|>U<|end|><|assistant|>A<|end|><|user|>U<|end|>"
    assert tokenizer.apply_chat_template(turns, tokenize=False) == chat
    prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert prompt == chat + "<|assistant|>"
    assert tokenizer.encode(prompt)[-1] == tokenizer.convert_tokens_to_ids("<|assistant|>")


def test_the_corpus_leaves_the_test_split_out_and_answers_in_one_format() -> None:
    rng = Random(1)
    for page in [draw(rng) for _ in range(2000)]:
        operands = re.fullmatch(r"What is (\d\d) \+ (\d\d)\?", page.question)
        assert operands is not None
        assert not is_held_out(*map(int, operands.groups()))
        assert re.fullmatch(r"(\d\+\d=\d+, \d\+\d(\+1)?=\d+\n)?#### The final answer is \d+", page.response)


def test_the_maker_makes_the_shipped_tokenizer(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    for name in TOKENIZER_FILES:
        assert (tmp_path / name).read_bytes() == (SHIPPED / name).read_bytes(), name


@pytest.mark.usefixtures("torch_settings_restored")
def test_the_same_seed_makes_the_same_weights(tokenizer: PreTrainedTokenizerBase) -> None:
    first, second, other = (make_model(tokenizer, steps=2, seed=seed).state_dict() for seed in (7, 7, 8))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_greedy_answers_have_the_form_of_an_answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    texts = sample(model, tokenizer, ArithmeticConfig(test_size=16).load("test"), temperature=0)
    assert all(re.fullmatch(rf"{ANSWER}\d+", text) for text in texts)


def test_the_untrained_model_is_rarely_right(evaluation: Evaluation) -> None:
    assert 0.05 < evaluation.right_greedy < 0.4
    assert 0.2 < evaluation.right_sampled < 0.5


def test_groups_have_mixed_rewards(evaluation: Evaluation) -> None:
    assert 0.1 < evaluation.skilled < 0.5
    assert evaluation.right_when_skilled > 0.8
    assert evaluation.mixed_groups > 0.7
