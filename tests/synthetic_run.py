"""Synthetic runs of any size, made quickly, for tests and benchmarks of the viewer.

All columns are filled as a run fills them: problems repeat over the steps, rewards rise, some samples are truncated or
could not be judged. The same arguments make the same run.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from dojang.core.rollout_schema import rollout_schema
from dojang.core.run_dir import RunDir

__all__ = ["make_run"]

OUTCOMES = ("accepted", "wrong", "no_answer", "timeout", "judge_error")
WORDS = ("sum", "loop", "return", "value", "index", "prime", "answer", "check", "list", "number", "√2", "naïve")
NEEDLE = "quixotic"
"""A word in the response of one sample of every step, and in no other."""


def make_run(
    path: Path,
    rollouts: int = 10_000,
    *,
    per_step: int = 512,
    group_size: int = 8,
    problems: int = 5_000,
    tokens: int = 48,
    characters: int = 600,
    evaluations: int = 0,
    finished: bool = True,
) -> Path:
    """Makes a run directory with `rollouts` samples of training; `evaluations` adds 64 of a test every n-th step."""
    directory = RunDir(path)
    (path / "rollouts").mkdir(parents=True)
    steps = math.ceil(rollouts / per_step)
    config = {"steps": steps, "seed": 0, "model": {"name": "synthetic"}, "rollout": {"group_size": group_size}}
    directory.config.write_text(yaml.safe_dump(config))
    directory.run.write_text(json.dumps({"recipe": "synthetic", "overrides": []}))
    random = np.random.default_rng(0)
    texts = _texts(random, characters)
    lines = []
    for step in range(1, steps + 1):
        count = min(per_step, rollouts - (step - 1) * per_step)
        table = _table(random, step, steps, count, group_size, problems, tokens, texts)
        pq.write_table(table, directory.rollouts("train", step), compression="zstd")
        lines.append(_metrics(step, steps, table["reward"]))
        if evaluations and step % evaluations == 0:
            table = _table(random, step, steps, 64, 1, 64, tokens, texts)
            pq.write_table(table, directory.rollouts("test", step), compression="zstd")
            lines.append({"step": step, "val/accuracy": lines[-1]["judge/outcome/accepted"]})
    directory.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        summary = {"recipe": "synthetic", "steps": steps, "seconds": 1.0, "eval": None, "status": "finished"}
        directory.summary.write_text(json.dumps(summary))
    return path


def _texts(random: np.random.Generator, characters: int) -> Sequence[str]:
    """Responses to choose from; making a million different ones would take longer than all the rest."""
    words = random.choice(WORDS, (997, max(characters // 6, 1)))
    return [" ".join(each)[: max(characters, 1)] for each in words]


def _table(
    random: np.random.Generator,
    step: int,
    steps: int,
    count: int,
    group_size: int,
    problems: int,
    tokens: int,
    texts: Sequence[str],
) -> pa.Table:
    skill = 0.2 + 0.6 * step / steps
    shares = np.array([skill, *((1 - skill) * np.array([0.7, 0.2, 0.09, 0.01]))])
    outcome = random.choice(len(OUTCOMES), count, p=shares / shares.sum())
    reward = np.where(outcome == 0, 1.0, np.round(random.random(count) * 0.5, 3))
    unjudged = outcome == OUTCOMES.index("judge_error")
    prompt = np.arange(count) // group_size
    prompt_index = prompt + (step - 1) * math.ceil(count / group_size)
    problem = (prompt_index * 7919) % problems
    response = [texts[each] for each in random.integers(0, len(texts), count)]
    response[0] = f"{response[0]} {NEEDLE}"
    lengths = random.integers(1, tokens + 1, count)
    prompts = np.full(count, 8)
    offsets = pa.array(np.concatenate([[0], np.cumsum(prompts + lengths)]), pa.int32())
    total = int(offsets[-1].as_py())
    places = np.arange(total) - np.repeat(offsets.to_numpy()[:-1], prompts + lengths)
    sampled = places >= 8
    values: dict[str, Any] = {
        "step": np.full(count, step, np.int32),
        "prompt_index": prompt_index,
        "index": (np.arange(count) % group_size).astype(np.int32),
        "problem": [f"problem/{each:06d}" for each in problem],
        "data_source": [f"source-{each % 3}" for each in problem],
        "question": [f"What is the value of problem {each}?" for each in problem],
        "prompt": [f"User: What is the value of problem {each}?" for each in problem],
        "response": response,
        "tokens": pa.ListArray.from_arrays(offsets, pa.array(random.integers(0, 256, total), pa.int32())),
        "mask": pa.ListArray.from_arrays(offsets, pa.array(sampled)),
        "logprobs": pa.ListArray.from_arrays(offsets, pa.array(np.where(sampled, -random.random(total), 0.0))),
        "version": np.full(count, step - 1, np.int64),
        "finish": np.where(lengths == tokens, "length", "stop"),
        "role": ["policy"] * count,
        "turn": np.zeros(count, np.int32),
        "outcome": np.array(OUTCOMES)[outcome],
        "reward": pa.array(reward, mask=unjudged),
        "reward_parts": [[("correct", float(each))] for each in reward],
        "passed": (outcome == 0).astype(np.int32),
        "total": np.ones(count, np.int32),
        "advantage": random.normal(size=count),
        "detail": ["expected 4, got 5"] * count,
        "isolation": [""] * count,
        "spans": [[]] * count,
        "tests": [[]] * count,
        "response_length": lengths.astype(np.int32),
    }
    schema = rollout_schema()
    columns = [pa.array(values.get(field.name, [None] * count), field.type) for field in schema]
    return pa.table(columns, schema=schema)


def _metrics(step: int, steps: int, reward: pa.ChunkedArray) -> dict[str, float]:
    values = reward.drop_null().to_numpy()
    return {
        "step": step,
        "critic/rewards/mean": float(values.mean()),
        "critic/rewards/min": float(values.min()),
        "critic/rewards/max": float(values.max()),
        "actor/pg_loss": math.sin(step) / 10,
        "actor/entropy": 2.0 * (1 - step / (2 * steps)),
        "judge/outcome/accepted": float((values == 1.0).mean()),
        "timing_s/step": 10.0,
        "timing_s/gen": 6.0,
        "timing_s/update_actor": 4.0,
    }
