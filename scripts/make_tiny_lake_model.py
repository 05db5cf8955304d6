"""Makes dojang-tiny-lake: `python scripts/make_tiny_lake_model.py OUT_DIR [--steps N] [--seed S]`.

The same small Llama as dojang-tiny (make_tiny_model.py), trained from scratch on `tiny_lake_corpus.py` in about five
minutes on one CPU core: first on walkers who look, then on all walkers. From few who look it only learns to move at
random. `dojang eval OUT_DIR --recipe quickstart-frozen-lake` evaluates it.
"""

from collections.abc import Sequence
from random import Random

import torch
from tokenizers import Regex, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.types import Message
from make_tiny_model import END, PAD, make_tokenizer, parse, pretrain, render, token_id
from tiny_lake_corpus import LOOKERS, draw, walk

__all__ = ["APART", "make_model"]

STEPS = 1000
MIXED = 0.25
"""Share of the steps, at the end, with all walkers."""
BATCH, MICROBATCH = 64, 16
APART = (pre_tokenizers.Split(Regex(r"[.PGH\n]|up|down|left|right"), "isolated"),)
"""Cells and moves are single tokens, so that a map is a row of tokens of the same length everywhere."""


def make_model(tokenizer: PreTrainedTokenizerBase, steps: int, seed: int) -> PreTrainedModel:
    """Pretrains on `steps` batches of walks."""

    def backward(model: PreTrainedModel, rng: Random, step: int) -> float:
        lookers = 1.0 if step <= (1 - MIXED) * steps else LOOKERS
        batches = _batches(tokenizer, [walk(rng, lookers) for _ in range(BATCH)])
        count = sum(int((labels != -100).sum()) for _, labels in batches)
        total = 0.0
        for tokens, labels in batches:
            loss = model(input_ids=tokens, labels=labels, num_items_in_batch=count).loss
            loss.backward()
            total += loss.item()
        return total

    return pretrain(tokenizer, steps, seed, backward)


def _batches(tokenizer: PreTrainedTokenizerBase, walks: Sequence[Sequence[Message]]) -> list[tuple[Tensor, Tensor]]:
    """Returns tokens, and labels of the replies alone. Walks of similar length share a microbatch, to pad little."""
    rows = sorted((_row(tokenizer, messages) for messages in walks), key=lambda row: len(row[0]))
    pad = token_id(tokenizer, PAD)
    found = []
    for start in range(0, len(rows), MICROBATCH):
        some = rows[start : start + MICROBATCH]
        width = len(some[-1][0])
        tokens = torch.tensor([tokens + [pad] * (width - len(tokens)) for tokens, _ in some])
        labels = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in some])
        found.append((tokens, labels))
    return found


def _row(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    tokens: list[int] = []
    labels: list[int] = []
    for question, reply in zip(messages[::2], messages[1::2], strict=True):
        asked = tokenizer.encode(render(tokenizer, [question]))
        said = tokenizer.encode(reply.content + END)
        tokens += asked + said
        labels += [-100] * len(asked) + said
    return tokens, labels


def main() -> None:
    options = parse("dojang-tiny-lake", STEPS)
    tokenizer = make_tokenizer(options.out, draw, APART)
    make_model(tokenizer, options.steps, options.seed).bfloat16().save_pretrained(options.out)


if __name__ == "__main__":
    main()
