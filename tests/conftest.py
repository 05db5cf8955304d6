"""Fixtures every test may use."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dojang.types import Group, Message, Outcome, Problem, Sample, Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# The models of the tests are too small to share between cores; threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background; its children would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TAGS"):
    os.environ.pop(name, None)  # they would switch a tracker on

BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[2] / "shared" / "data"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real datasets, which are too large to be part of the repository."""
    folder = Path(os.environ.get("DOJANG_DATA", BESIDE_THE_REPOSITORY))
    if not folder.is_dir():
        pytest.skip(f"no datasets at {folder}; set DOJANG_DATA to a folder that holds gsm8k/train.jsonl etc.")
    return folder


@pytest.fixture(scope="session")
def tokenizer() -> "PreTrainedTokenizerBase":
    """A byte-level tokenizer of about 300 tokens, with a chat template and a few words of several letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(["the answer is ", "the question: what is ", "stop here"] * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>", pad_token="<|pad|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def micro_model(tokenizer: "PreTrainedTokenizerBase") -> "Callable[..., PreTrainedModel]":
    """Makes random Llamas of two layers: the same seed, the same weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.2,  # so that the distributions are far from uniform
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )

    def make(dtype: "torch.dtype" = torch.float32, seed: int = 0, vocab_size: int | None = None) -> "PreTrainedModel":
        chosen = config if vocab_size is None else LlamaConfig(**{**config.to_dict(), "vocab_size": vocab_size})
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return LlamaForCausalLM(chosen).to(dtype).eval()

    return make


@pytest.fixture(scope="session")
def problem() -> Problem:
    return Problem("sums/1", "sums", (Message("user", "what is 1+1?"),), "2")


@pytest.fixture(scope="session")
def make_sample() -> Callable[..., Sample]:
    """Makes samples by what matters to a test: the reward, or the tokens."""
    return _sample


@pytest.fixture(scope="session")
def make_group(problem: Problem) -> Callable[..., Group]:
    """Makes a group from rewards (1 and above is accepted), a number of judge errors, and other samples."""

    def make(
        rewards: Sequence[float] = (), *, errors: Sequence[str] = (), prompt_index: int = 0, **sample: Any
    ) -> Group:
        samples = tuple(_sample(reward, index=index, **sample) for index, reward in enumerate(rewards))
        unjudged = tuple(
            _sample(index=len(samples) + place, verdict=Verdict(Outcome.JUDGE_ERROR, None, detail=error), **sample)
            for place, error in enumerate(errors)
        )
        return Group(problem, prompt_index, samples, unjudged)

    return make


def _sample(
    reward: float = 0.0,
    *,
    prompt: Sequence[int] = (7, 8, 9),
    answer: Sequence[int] = (10, 11),
    logprobs: Sequence[float] | None = None,
    outcome: Outcome | None = None,
    **fields: Any,
) -> Sample:
    chosen = outcome or (Outcome.ACCEPTED if reward >= 1 else Outcome.WRONG)
    values: dict[str, Any] = {
        "tokens": (*prompt, *answer),
        "mask": (False,) * len(prompt) + (True,) * len(answer),
        "logprobs": (0.0,) * len(prompt) + tuple(logprobs if logprobs is not None else (-1.0,) * len(answer)),
        "text": "",
        "finish": "stop",
        "version": 0,
        "verdict": Verdict(chosen, reward),
    }
    return Sample(**{**values, **fields})


@pytest.fixture(autouse=True)
def signal_handlers_stay() -> Iterator[None]:
    """Restores signal handlers: a command ends with signals ignored, also one that a test runs in this process."""
    with _signal_handlers_restored():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Iterator[None]:
    """Restores signal handlers after the set-up of a fixture, too: those of a module are set up before the fixture
    above, which would take the signals that they ignore for ignored from the beginning."""
    with _signal_handlers_restored():
        return (yield)


@contextmanager
def _signal_handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
