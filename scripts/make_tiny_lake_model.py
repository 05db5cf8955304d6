"""Makes dojang-tiny-lake: `python scripts/make_tiny_lake_model.py OUT_DIR [--steps N] [--seed S]`.

The same small Llama as dojang-tiny (make_tiny_model.py), trained from scratch on `tiny_lake_corpus.py` in about five
minutes on one CPU core: first on walkers who look, then on all walkers. From few who look it only learns to move at
random. `dojang eval OUT_DIR --recipe quickstart-frozen-lake` evaluates it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, pre_tokenizers
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dojang.types import Message
from make_tiny_model import END, PAD, PEAK_RATE, architecture, make_tokenizer, render, token_id
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
    torch.set_num_threads(1)  # the number of threads determines the order of float additions
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    rng = Random(seed)
    model = LlamaForCausalLM(architecture(tokenizer))  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=steps, pct_start=0.1)
    for step in range(1, steps + 1):
        lookers = 1.0 if step <= (1 - MIXED) * steps else LOOKERS
        batches = _batches(tokenizer, [walk(rng, lookers) for _ in range(BATCH)])
        count = sum(int((labels != -100).sum()) for _, labels in batches)
        total = 0.0
        for tokens, labels in batches:
            loss = model(input_ids=tokens, labels=labels, num_items_in_batch=count).loss
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0:
            sys.stdout.write(f"step {step}/{steps}  loss {total:.3f}\n")
            sys.stdout.flush()
    return model


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
    parser = argparse.ArgumentParser(description="Make dojang-tiny-lake.")
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="where to write the model")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"batches to train on (default {STEPS})")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and corpus (default 0)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(options.out, draw, APART)
    make_model(tokenizer, options.steps, options.seed).bfloat16().save_pretrained(options.out)


if __name__ == "__main__":
    main()
