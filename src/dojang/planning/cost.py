"""Seconds of a step, and hours and USD of a run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dojang.config.run_config import RunConfig
from dojang.planning.efficiency import (
    ANSWER_CORE_S,
    CPU_SAMPLE_S,
    DISK,
    GRADE_S,
    HOST_LINK,
    PROGRAM_CORE_S,
    RECORD_S,
    SAMPLE_S,
)
from dojang.planning.kv_cache_memory import Cache
from dojang.planning.layout import Layout
from dojang.planning.memory_use import PlannedModel
from dojang.planning.overlap import bottleneck, overlap_gain
from dojang.planning.speed import Machine, generate_s, optimizer_s, server_slots, teacher_s, update_s
from dojang.planning.tokens_per_step import Work

__all__ = ["Times", "estimate_times", "judge_core_s"]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one step, and of the run."""

    generate: float
    judge: float
    waves: int
    """Number of times all slots are filled; judging overlaps with sampling except for the last wave."""
    update: float
    publish: float
    evaluation: float
    evaluations: int
    steps: int
    answered: int
    """Sampled tokens of a step."""
    usd_an_hour: float | None
    benchmarks: float = 0.0
    """Seconds of all evaluations on eval.benchmarks."""
    teacher: float = 0.0
    """Seconds of a local teacher's log-probs."""
    samples: bool = True
    """Whether a step samples; SFT samples only in evaluations."""
    overlaps: bool = False
    """Whether rollouts and updates overlap (loop.mode)."""
    shared: bool = False
    """Whether engine and trainer share a device."""

    @property
    def rollout(self) -> float:
        """Seconds of sampling and judging; the last completions are judged after sampling ends."""
        return max(self.generate + self.judge / self.waves, self.judge) if self.samples else 0.0

    @property
    def train(self) -> float:
        """Seconds of the trainer, which rollouts may overlap with."""
        return self.teacher + self.update

    @property
    def step(self) -> float:
        return self.rollout + self.train + self.publish

    @property
    def run_step(self) -> float:
        """Seconds of a step in the run's loop.mode. On separate devices the longer stage counts. On one device decoding
        and updates slow each other down, as much as if they took turns; judging overlaps with updates."""
        if not self.overlaps:
            return self.step
        busy = self.generate + self.train if self.shared else self.train
        return max(self.rollout, busy)

    @property
    def overlap_gain(self) -> float:
        """Largest speed-up of a step if rollouts and updates overlap."""
        return overlap_gain(self.rollout, self.train, self.publish)

    @property
    def bottleneck(self) -> str:
        """Stage that limits a step if rollouts and updates overlap."""
        return bottleneck(self.rollout, self.train)

    @property
    def hours(self) -> float:
        """Hours of the run, without start-up and checkpoints."""
        return (self.steps * self.run_step + self.evaluations * self.evaluation + self.benchmarks) / 3600

    @property
    def usd(self) -> float | None:
        return None if self.usd_an_hour is None else self.usd_an_hour * self.hours

    def as_json(self) -> dict[str, float | int | str | None]:
        return {
            "generate_s": self.generate,
            "judge_s": self.judge,
            "rollout_s": self.rollout,
            "teacher_s": self.teacher,
            "update_s": self.update,
            "publish_s": self.publish,
            "step_s": self.step,
            "run_step_s": self.run_step,
            "overlap_gain": self.overlap_gain if self.samples else None,
            "bottleneck": self.bottleneck if self.samples else None,
            "evaluation_s": self.evaluation,
            "decode_tokens_per_s": self.answered / self.generate,
            "hours": self.hours,
            "usd": self.usd,
        }


def estimate_times(
    config: RunConfig,
    planned: Mapping[str, PlannedModel],
    layout: Layout,
    work: Work,
    cache: Cache | None,
    language: str,
    *,
    shared: bool,
) -> Times:
    """Estimates the times of a run; `cache` is the KV cache of the torch engine; `shared`: an engine samples on a
    device that also trains."""
    generate, learn, publish, teacher = 0.0, list[float](), list[float](), list[float]()
    waves = 1
    for role, model in planned.items():
        itemsize = 4 if layout.gpu is None and model.config.model.dtype != "bfloat16" else 2
        machine = Machine(layout.device, itemsize)
        own = layout.of(role)
        slots = _slots(machine, model, work, role, cache)
        devices = max(1, own.servers if own.on_ray else layout.servers // len(planned))  # each has one model
        sequences = math.ceil(work.sequences / devices)
        waves = max(1, math.ceil(sequences / max(1, slots)))
        asked = math.ceil(work.asked(role) / devices)
        engine = replace(machine, gpus=model.config.rollout.engine.gpus())
        generate += generate_s(engine, model.shape, work.lengths[role], sequences, asked, slots)
        learned = model.shape.parameters if config.train.lora is None else 0
        updates = work.updates * optimizer_s(machine, model, learned, own)
        learn.append(model.config.train.ppo_epochs * (update_s(machine, model, work, role, own) + updates))
        learn[-1] += RECORD_S * work.sequences if layout.gpu else 0.0
        teacher.append(teacher_s(machine, model, work, role, own))
        publish.append(_publish_s(machine, model, own))
    together = max if layout.on_ray else sum  # on a Ray cluster the roles update at the same time
    generate += (SAMPLE_S if layout.gpu else CPU_SAMPLE_S) * work.sequences
    judge = _judge_s(config, layout, work.sequences, language)
    answer = (generate / len(planned) + judge) / work.sequences
    benchmarks = [
        (2 + (config.steps - 1) // each.every)
        * (each.problems or 0)
        * each.samples  # 0 for all problems, whose number is unknown here
        for each in config.eval.benchmarks.values()
    ]
    return Times(
        generate,
        judge,
        waves,
        together(learn),
        together(publish),
        config.eval.problems * config.eval.samples * answer,
        2 + (config.steps - 1) // config.eval.every,
        config.steps,
        sum(work.answered(role) for role in planned),
        layout.usd,
        sum(benchmarks) * answer,
        teacher=together(teacher),
        samples=config.algo.name != "sft",
        overlaps=config.algo.name != "sft" and config.loop.staleness > 0,
        shared=shared,
    )


def _slots(machine: Machine, model: PlannedModel, work: Work, role: str, cache: Cache | None) -> int:
    engine = model.config.rollout.engine
    if engine.name == "remote":
        return max(1, server_slots(machine, model.shape, work.lengths[role]))
    return max(1, cache.slots) if cache else engine.max_num_seqs


def judge_core_s(config: RunConfig, language: str) -> float:
    """Seconds of a core that an answer takes."""
    if config.task.runs_programs:
        return PROGRAM_CORE_S.get(language, PROGRAM_CORE_S["cpp17"])
    return ANSWER_CORE_S.get(config.task.name, 1e-4)


def _judge_s(config: RunConfig, layout: Layout, answers: int, language: str) -> float:
    if config.task.runs_programs and config.judge.url:
        return 0.0  # other machines of unknown speed
    if layout.gpu and not config.task.runs_programs and config.task.name not in ANSWER_CORE_S:
        return answers * GRADE_S  # in the thread of the loop, not on all cores
    machines = layout.nodes if layout.on_ray else 1
    workers = min(config.judge.workers * machines or layout.cores, layout.cores)
    return answers * judge_core_s(config, language) / workers


def _publish_s(machine: Machine, model: PlannedModel, layout: Layout) -> float:
    size = machine.itemsize * model.shape.parameters
    if layout.on_ray and layout.gpu and not model.config.rollout.engine.external:  # through host memory
        between = size / (1e9 * layout.gpu.network) if layout.nodes > 1 else 0.0
        return 2 * size / HOST_LINK + between
    if model.config.rollout.engine.copies_trainer:
        passes = 30 if model.config.rollout.engine.weight_sync == "delta" else 4  # two checksums and a comparison
        return passes * size / machine.bandwidth
    if model.config.rollout.engine.weight_sync == "delta":
        return 4 * size / machine.bandwidth + size / 30 / DISK
    return 2 * size / DISK
