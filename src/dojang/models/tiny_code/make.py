"""Makes dojang-tiny-code: `python -m dojang.models.tiny_code.make OUT_DIR [--steps N] [--seed S]`.

The same small Llama as dojang-tiny (models/tiny/make.py), trained from scratch on `corpus.py`, then evaluated on
held-out problems. Programs are not run here: one is correct if it equals a careful beginner's.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import torch
from tokenizers import Regex, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dojang.data.tiny_programs import Formula, TinyProgramsConfig, question
from dojang.models.tiny.make import GROUP, make_model, make_tokenizer, sample
from dojang.models.tiny_code.corpus import draw, program
from dojang.types import Problem

__all__ = ["LETTERS", "Evaluation", "evaluate"]

STEPS = 400
LETTERS = (pre_tokenizers.Split(Regex(r"\b[a-z]\b"), "isolated"),)
"""Names of numbers are single tokens, so that they can be copied."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of the model, each a share between 0 and 1."""

    right_greedy: float
    right_sampled: float
    remembers: float
    """Share of programs that convert their input to numbers."""
    right_when_it_remembers: float
    mixed_groups: float
    """Share of groups with correct and wrong samples: the only ones with a signal for group-relative algorithms."""


def evaluate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], seed: int
) -> Evaluation:
    """Samples every problem once greedily, and a group at temperature 1."""
    torch.manual_seed(seed)
    greedy = [text == _wanted(problem) for problem, text in _answers(model, tokenizer, problems, 0, 1)]
    drawn = [
        (text == _wanted(problem), "int(input" in text)
        for problem, text in _answers(model, tokenizer, problems, 1, GROUP)
    ]
    right = [each for each, _ in drawn]
    careful = [each for each, remembered in drawn if remembered]
    groups = [sum(right[start : start + GROUP]) for start in range(0, len(right), GROUP)]
    return Evaluation(
        right_greedy=_mean(greedy),
        right_sampled=_mean(right),
        remembers=len(careful) / len(drawn),
        right_when_it_remembers=_mean(careful),
        mixed_groups=_mean([0 < each < GROUP for each in groups]),
    )


def main() -> None:
    """Makes the model, saves it, loads it again and prints its results."""
    parser = argparse.ArgumentParser(description="Make dojang-tiny-code.")
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="where to write the model")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"batches to train on (default {STEPS})")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and corpus (default 0)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(options.out, draw, LETTERS)
    model = make_model(tokenizer, options.steps, options.seed, draw)
    model.bfloat16().save_pretrained(options.out)
    shipped = AutoModelForCausalLM.from_pretrained(options.out, dtype=torch.float32)  # with the rounding
    held_out = evaluate(shipped, tokenizer, TinyProgramsConfig().load("test"), options.seed)
    for name, value in asdict(held_out).items():
        sys.stdout.write(f"{name.replace('_', ' '):<26}{value:6.1%}\n")


def _answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    temperature: float,
    times: int,
) -> list[tuple[Problem, str]]:
    """Samples each problem several times; batches problems of equal length."""

    def length(problem: Problem) -> int:
        return len(tokenizer.encode(problem.messages[0].content))

    found = []
    for _, alike in groupby(sorted(problems, key=length), key=length):
        asked = [problem for problem in alike for _ in range(times)]
        found += list(zip(asked, sample(model, tokenizer, asked, temperature), strict=True))
    return found


def _wanted(problem: Problem) -> str:
    """Returns the program of a careful beginner."""

    names, formula = problem.id.split("/")[1:]
    parts = formula.replace("+", " + ").replace("-", " - ").replace("*", " * ").split()
    wanted = Formula(names, tuple(parts))
    assert question(wanted) == problem.messages[0].content
    return program(wanted)


def _mean(values: Sequence[bool]) -> float:
    return sum(values) / max(len(values), 1)


if __name__ == "__main__":
    main()
