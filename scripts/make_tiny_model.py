"""Makes dojang-tiny: `python scripts/make_tiny_model.py OUT_DIR [--steps N] [--seed S]`.

A small Llama and a byte-level BPE tokenizer, trained from scratch on `tiny_corpus.py` in about two minutes on one
CPU core, then evaluated on held-out problems. The same seed gives the same bytes on the same torch build and kind
of machine; elsewhere the weights are equal up to rounding, and the tokenizer is the same everywhere.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dojang.data.arithmetic import ArithmeticConfig
from dojang.types import Message, Problem
from tiny_corpus import ANSWER, Exercise, draw

__all__ = [
    "END",
    "PAD",
    "Evaluation",
    "Grade",
    "evaluate",
    "grade",
    "make_model",
    "make_tokenizer",
    "parse",
    "pretrain",
    "render",
    "run",
    "sample",
    "token_id",
]

STEPS = 600
BATCH = 128
PEAK_RATE = 5e-3
MAX_TOKENS = 32
GROUP = 8
PAD, END = "<|pad|>", "<|end|>"
CHAT_TEMPLATE = """\
{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
"""


def make_tokenizer(
    out: Path,
    draw: Callable[[Random], Exercise] = draw,
    apart: Sequence[pre_tokenizers.PreTokenizer] = (),
) -> PreTrainedTokenizerBase:
    """Trains the tokenizer, writes its files into `out`, and loads it from there. `apart` are further characters that
    stay single tokens."""
    tokenizer = Tokenizer(models.BPE())
    # Digits are single tokens, so that columns can be added. Text between them is not split into words, so that a
    # frequent phrase becomes one token and completions stay short.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            *apart,
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,  # an upper limit: the corpus has no more pairs to merge near 300
        special_tokens=[PAD, END, "<|system|>", "<|user|>", "<|assistant|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # every byte, so that any text can be encoded
        show_progress=False,
    )
    rng = Random(0)
    pages = [draw(rng) for _ in range(1000)]
    tokenizer.train_from_iterator((text for page in pages for text in (page.question, page.response)), trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD}
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(out)
    return loaded


def make_model(
    tokenizer: PreTrainedTokenizerBase, steps: int, seed: int, draw: Callable[[Random], Exercise] = draw
) -> PreTrainedModel:
    """Pretrains on `steps` batches of homework."""

    def backward(model: PreTrainedModel, rng: Random, step: int) -> float:
        tokens, labels = _batch(tokenizer, [draw(rng) for _ in range(BATCH)])
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        return float(loss.item())

    return pretrain(tokenizer, steps, seed, backward)


def pretrain(
    tokenizer: PreTrainedTokenizerBase, steps: int, seed: int, backward: Callable[[PreTrainedModel, Random, int], float]
) -> PreTrainedModel:
    """Trains a new model. `backward` computes the gradients of a step, counted from 1, and returns its loss."""
    torch.set_num_threads(1)  # the number of threads determines the order of float additions
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    rng = Random(seed)
    model = LlamaForCausalLM(architecture(tokenizer))  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=steps, pct_start=0.1)
    for step in range(1, steps + 1):
        loss = backward(model, rng, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0:
            sys.stdout.write(f"step {step}/{steps}  loss {loss:.3f}\n")
            sys.stdout.flush()
    return model


@torch.no_grad()
def sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], temperature: float
) -> list[str]:
    """Samples one completion for each problem; temperature 0 is greedy."""
    prompts = tokenizer([render(tokenizer, problem.messages) for problem in problems])["input_ids"]
    tokens = fresh = torch.tensor(prompts)  # the questions have equal lengths, so no padding
    end, cache = token_id(tokenizer, END), DynamicCache()
    for _ in range(MAX_TOKENS):
        logits = model(input_ids=fresh, past_key_values=cache).logits[:, -1]
        if temperature:
            fresh = torch.multinomial(torch.softmax(logits / temperature, dim=-1), num_samples=1)
        else:
            fresh = logits.argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, fresh], dim=1)
        if (tokens == end).sum(dim=1).gt(1).all():  # the end of the question, and that of the completion
            break
    return [str(tokenizer.decode(row)).split(END)[1].removeprefix("<|assistant|>") for row in tokens]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of the model, each a share between 0 and 1."""

    right_greedy: float
    right_sampled: float
    skilled: float
    """Share of samples that use the rare skill of the corpus."""
    right_when_skilled: float
    mixed_groups: float
    """Share of groups with correct and wrong samples: the only ones with a signal for group-relative algorithms."""


Grade = Callable[[Problem, str], tuple[bool, bool]]
"""Returns whether a completion is right, and whether it uses the skill."""


def grade(problem: Problem, text: str) -> tuple[bool, bool]:
    """Grades a sum; the skill is to show the work."""
    return text.endswith(f"{ANSWER}{problem.reference}"), "=" in text


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    seed: int,
    grade: Grade = grade,
) -> Evaluation:
    """Samples every problem once greedily, and a group at temperature 1."""

    def length(problem: Problem) -> int:
        return len(tokenizer.encode(problem.messages[0].content))

    def graded(temperature: float, times: int) -> list[tuple[bool, bool]]:
        found = []
        for _, alike in groupby(sorted(problems, key=length), key=length):  # a batch has prompts of equal length
            asked = [problem for problem in alike for _ in range(times)]
            found += list(map(grade, asked, sample(model, tokenizer, asked, temperature)))
        return found

    torch.manual_seed(seed)
    greedy = [right for right, _ in graded(0, 1)]
    drawn = graded(1, GROUP)
    right = [each for each, _ in drawn]
    skilled = [each for each, skill in drawn if skill]
    groups = [sum(right[start : start + GROUP]) for start in range(0, len(right), GROUP)]
    return Evaluation(
        right_greedy=_mean(greedy),
        right_sampled=_mean(right),
        skilled=len(skilled) / len(drawn),
        right_when_skilled=_mean(skilled),
        mixed_groups=_mean([0 < each < GROUP for each in groups]),
    )


def parse(name: str, steps: int) -> argparse.Namespace:
    """Reads the command line, and makes the folder `out` that it names."""
    parser = argparse.ArgumentParser(description=f"Make {name}.")
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="where to write the model")
    parser.add_argument("--steps", type=int, default=steps, help=f"batches to train on (default {steps})")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and corpus (default 0)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def run(
    name: str,
    steps: int,
    problems: Sequence[Problem],
    draw: Callable[[Random], Exercise] = draw,
    apart: Sequence[pre_tokenizers.PreTokenizer] = (),
    grade: Grade = grade,
) -> None:
    """Makes a model as the command line says, saves it, loads it again and prints its results on `problems`."""
    options = parse(name, steps)
    tokenizer = make_tokenizer(options.out, draw, apart)
    model = make_model(tokenizer, options.steps, options.seed, draw)
    model.bfloat16().save_pretrained(options.out)
    shipped = AutoModelForCausalLM.from_pretrained(options.out, dtype=torch.float32)  # as rounded
    for key, value in asdict(evaluate(shipped, tokenizer, problems, options.seed, grade)).items():
        sys.stdout.write(f"{key.replace('_', ' '):<26}{value:6.1%}\n")


def architecture(tokenizer: PreTrainedTokenizerBase) -> LlamaConfig:
    """Returns about the smallest Llama that reliably learns column addition."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=token_id(tokenizer, END),
        pad_token_id=token_id(tokenizer, PAD),
    )


def _batch(tokenizer: PreTrainedTokenizerBase, pages: Sequence[Exercise]) -> tuple[Tensor, Tensor]:
    """Returns tokens, and labels that mask the question: the model learns to answer, not to ask."""
    prompts = tokenizer([render(tokenizer, [Message("user", page.question)]) for page in pages])["input_ids"]
    responses = tokenizer([page.response + END for page in pages])["input_ids"]
    rows = list(zip(prompts, responses, strict=True))
    width = max(len(prompt) + len(response) for prompt, response in rows)
    tokens = torch.full((len(rows), width), token_id(tokenizer, PAD))
    labels = torch.full((len(rows), width), -100)
    for i, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        tokens[i, :end] = torch.tensor(prompt + response)
        labels[i, len(prompt) : end] = torch.tensor(response)
    return tokens, labels


def token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    return tokenizer.get_vocab()[token]


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> str:
    turns = [{"role": message.role, "content": message.content} for message in messages]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


def _mean(values: Sequence[bool]) -> float:
    return sum(values) / max(len(values), 1)


if __name__ == "__main__":
    run("dojang-tiny", STEPS, ArithmeticConfig().load("test"))
