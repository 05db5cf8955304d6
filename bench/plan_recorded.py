"""Plans beside recorded runs: seconds of a step and peak memory, from the raw metrics in docs/results.

Each step is planned with its own mean completion length and share of groups without a gradient; medians over the steps
are compared. Steps whose update had no gradient are left out, as is the first one; steps do not contain evaluations or
checkpoints. Memory is the allocator's peak (perf/max_memory_allocated_gb), so the plan's is without the process's part.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from dojang.config import recipe
from dojang.config.run_config import RunConfig
from dojang.planning.estimate import Estimate, Subject, estimate
from dojang.planning.instances import INSTANCES
from dojang.planning.shapes import find_shape
from dojang.planning.tokens_per_step import Lengths

__all__ = ["RUNS", "Compared", "Run", "compare", "table"]

RESULTS = Path(__file__).parent.parent / "docs" / "results"
HERE = INSTANCES["h200"]
TOLERANCE = 0.15
_PROGRAM = 128
"""Assumed tokens of the program in a tester's prompt, besides its problem; its text around them included."""

# Prompt lengths in tokens, mean and longest, counted with the models' tokenizers.
GSM8K, GSM8K_SMOLLM2, GSM8K_TWO_SHOTS = (112, 265), (115, 279), (369, 533)
MBPP, CODE_CONTESTS = (99, 221), (484, 1211)

_WALL_TIME = ("algo.name=m2po", "rollout.prompts_per_step=32", "train.max_tokens_per_microbatch=32768")
_DISTILLATION = ("rollout.engine.kv_cache_gb=3", "train.max_tokens_per_microbatch=16384")
_LAG = (*_WALL_TIME, "rollout.engine.kv_cache_gb=4")


@dataclass(frozen=True)
class Run:
    """A recorded run and its configuration."""

    name: str
    metrics: str
    """File under docs/results."""
    recipe: str
    overrides: tuple[str, ...]
    prompt: tuple[int, int]
    """Mean and longest prompt."""
    alone: bool = True
    """Whether it is known to have had the GPU alone: else its times say nothing."""
    fitted: bool = False
    """Whether a constant of the plan comes from it."""
    first: int = 2
    """First step that counts."""
    merged_at_once: bool = False
    """Whether it is from before LoRA weights were merged one by one: it held two merged copies of each model."""

    @property
    def config(self) -> RunConfig:
        return recipe.load(self.recipe, self.overrides)

    def steps(self) -> list[dict[str, Any]]:
        """Metrics of the steps that count."""
        rows = [json.loads(line) for line in (RESULTS / self.metrics).read_text().splitlines()]
        return [
            each for each in rows if "timing_s/step" in each and "actor/loss" in each and each["step"] >= self.first
        ]


def _qwen(
    name: str,
    metrics: str,
    recipe_name: str,
    overrides: tuple[str, ...],
    *,
    prompt: tuple[int, int] = GSM8K,
    **more: Any,
) -> Run:
    return Run(f"1.5B, {name}", f"qwen2.5-coder-1.5b/{metrics}.jsonl", recipe_name, overrides, prompt, **more)


def _smollm2(name: str, file: str, rest: tuple[str, ...], **more: Any) -> Run:
    return Run(f"135M, {name}", f"smollm2-gsm8k/{file}.jsonl", "smollm2-gsm8k", rest, GSM8K_TWO_SHOTS, **more)


RUNS: Sequence[Run] = (
    _smollm2("sync", "wall-time/sync", (*_LAG, "loop.mode=sync"), fitted=True),
    _smollm2("overlap", "wall-time/overlap", (*_LAG, "loop.mode=overlap", "loop.lag=1")),
    _smollm2("stream", "wall-time/stream", (*_LAG, "loop.mode=stream", "loop.lag=4")),
    Run(
        "135M, overlap, no examples",
        "smollm2-gsm8k/no-examples/metrics.jsonl",
        "gsm8k-smollm2-distill",
        (*_DISTILLATION, "distillation=null", "rollout.prompts_per_step=32", "rollout.group_size=8"),
        GSM8K_SMOLLM2,
        first=11,  # the first ten ran beside other work
    ),
    Run(
        "135M, distillation from 1.5B",
        "smollm2-gsm8k/distillation/metrics.jsonl",
        "gsm8k-smollm2-distill",
        _DISTILLATION,
        GSM8K_SMOLLM2,
        first=31,  # those before are twice as long for the same tokens
    ),
    Run(
        "135M, distillation, longer answers",
        "smollm2-gsm8k/distillation-longer/metrics.jsonl",
        "gsm8k-smollm2-distill",
        _DISTILLATION,
        GSM8K_SMOLLM2,
    ),
    _qwen(
        "sync (beside TRL)",
        "beside-trl/dojang",
        "gsm8k-qwen2.5-coder-1.5b",
        ("rollout.prompts_per_step=32", "rollout.engine.kv_cache_gb=16", "loop.mode=sync", "task.stop_at=never"),
    ),
    _qwen(
        "overlap, QLoRA",
        "qlora/metrics",
        "gsm8k-qwen2.5-coder-1.5b-qlora",
        ("rollout.engine.kv_cache_gb=8", "train.gradient_checkpointing=false", "train.max_tokens_per_microbatch=16384"),
    ),
    _qwen(
        "stream, LoRA, coder and tester",
        "coder-tester/metrics",
        "coder-tester-1.5b",
        ("judge.workers=10",),
        prompt=MBPP,
        merged_at_once=True,
    ),
    _smollm2("sync, GRPO", "lag/grpo-0", (*_LAG[1:], "loop.mode=sync"), alone=False),
    _smollm2("lag 8", "lag/m2po-8", (*_LAG, "loop.mode=overlap", "loop.lag=8"), alone=False),
    _smollm2("lag 64", "lag/m2po-64", (*_LAG, "loop.mode=overlap", "loop.lag=64"), alone=False),
    _qwen("GSM8K", "gsm8k/metrics", "gsm8k-qwen2.5-coder-1.5b", ("rollout.engine.kv_cache_gb=10",), alone=False),
    _qwen("MBPP", "mbpp/metrics", "mbpp-1.5b", ("rollout.engine.kv_cache_gb=10",), prompt=MBPP, alone=False),
    _qwen(
        "C++, gradient checkpointing",
        "codefu/metrics",
        "codefu-1.5b",
        ("rollout.engine.kv_cache_gb=14", "judge.workers=12"),
        prompt=CODE_CONTESTS,
        alone=False,
    ),
)


@dataclass(frozen=True)
class Compared:
    """Medians of a run's steps: measured and planned seconds by stage, and peak memory in GB."""

    run: Run
    measured: Mapping[str, float]
    planned: Mapping[str, float]
    overlaps: bool = field(default=False)
    """Whether its stages slow each other down: then only the step is compared."""

    def ratio(self, what: str) -> float | None:
        """Planned over measured; None if it was not measured, or not alone."""
        if what not in self.measured:
            return None
        if what != "memory" and (not self.run.alone or (self.overlaps and what != "step")):
            return None
        return self.planned[what] / self.measured[what]


def compare(run: Run) -> Compared:
    """Plans each step of a run."""
    config, rows = run.config, run.steps()
    found = [_plan(run, config, row) for row in rows]
    measured = {
        "step": [row["timing_s/step"] for row in rows],
        "rollout": [row["timing_s/rollout"] for row in rows if "timing_s/rollout" in row],
        "update": [_update_s(row) for row in rows],
        "memory": [max(row.get("perf/max_memory_allocated_gb", 0.0) for row in rows)],
    }
    planned = {
        "step": [each.times.run_step for each in found],
        "rollout": [each.times.rollout for each in found],
        "update": [each.times.update for each in found],
        "memory": [max(_allocated_gb(each) for each in found) + (_merged_gb(config) if run.merged_at_once else 0)],
    }
    return Compared(
        run,
        {name: median(values) for name, values in measured.items() if values},
        {name: median(values) for name, values in planned.items()},
        config.loop.staleness > 0,
    )


def _update_s(row: Mapping[str, float]) -> float:
    """Seconds of the trainer besides the teacher: gradients and optimizer, advantages, metrics and records."""
    return row["timing_s/step"] - sum(row.get(f"timing_s/{name}", 0.0) for name in ("wait", "teacher", "publish"))


def _allocated_gb(found: Estimate) -> float:
    return (found.needs.peak - found.needs.parts["process"]) / 1e9


def _merged_gb(config: RunConfig) -> float:
    """Two copies of the weights of each model, in half precision."""
    shapes = (find_shape(each.model.name, torch_engine=True)[0] for each in config.roles().values())
    return sum(2 * 2 * shape.parameters for shape in shapes if shape is not None) / 1e9


def _plan(run: Run, config: RunConfig, row: Mapping[str, float]) -> Estimate:
    shapes, lengths, idle, before = {}, {}, {}, 0
    for role, each in config.roles().items():
        shape, why = find_shape(each.model.name, torch_engine=True)
        if shape is None:
            raise ValueError(f"{each.model.name}: {why}")
        prefix = f"{role}/" if before else ""
        mean, longest = (size + before for size in run.prompt)
        answer = max(1, round(row[f"{prefix}response_length/mean"]))
        shapes[role] = shape
        lengths[role] = Lengths(mean, longest, answer, each.rollout.max_tokens, shared=not before)
        idle[role] = row[f"{prefix}groups/zero_variance"] / row[f"{prefix}groups/total"]
        before = _PROGRAM
    language = str(getattr(config.task, "language", "") or "")
    return estimate(Subject(config, shapes, lengths, language, idle), HERE)


def table(found: Sequence[Compared]) -> Iterator[str]:
    """Yields the lines of a Markdown table: measured / planned, and the quotient; bold beyond the tolerance."""
    yield "| run | step | rollout | update | peak memory |"
    yield "|---|---|---|---|---|"
    for each in found:
        name = each.run.name + (" (fitted)" if each.run.fitted else "")
        cells = [_cell(each, what, unit) for what, unit in (("step", "s"), ("rollout", "s"), ("update", "s"))]
        yield "| " + " | ".join([name, *cells, _cell(each, "memory", "GB")]) + " |"
    good = [each for each in found if _within(each.ratio("step")) and _within(each.ratio("memory"))]
    timed = sum(each.run.alone for each in found)
    yield ""
    yield (
        f"Step and memory are within {TOLERANCE:.0%} in {len(good)} of {timed} runs that had the GPU alone, memory in "
        f"{sum(_within(each.ratio('memory')) for each in found)} of all {len(found)}."
    )


def _within(ratio: float | None) -> bool:
    return ratio is not None and abs(ratio - 1) <= TOLERANCE


def _cell(found: Compared, what: str, unit: str) -> str:
    ratio = found.ratio(what)
    if ratio is None:
        return ""
    said = f"{found.measured[what]:.3g} / {found.planned[what]:.3g} {unit}, {ratio:.2f}"
    return said if _within(ratio) else f"**{said}**"
