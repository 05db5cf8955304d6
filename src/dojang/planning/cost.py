"""Hours and money of a whole run, from the seconds of its parts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dojang.config.run_config import RunConfig
from dojang.planning.efficiency import ANSWER_CORE_S, CPU_SAMPLE_S, DISK, HOST_LINK, PROGRAM_CORE_S, SAMPLE_S
from dojang.planning.kv_cache_memory import Cache
from dojang.planning.layout import Layout
from dojang.planning.memory_use import Player
from dojang.planning.speed import Machine, generate_s, learn_s, optimizer_s, server_slots
from dojang.planning.tokens_per_step import Work
from dojang.tasks.code import CodeConfig

__all__ = ["Times", "judge_core_s", "reckon"]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one step, and of the run."""

    generate: float
    judge: float
    waves: int
    """How often all slots are filled; what is judged meanwhile takes no time of its own."""
    learn: float
    publish: float
    evaluation: float
    evaluations: int
    steps: int
    answered: int
    """Tokens a step draws."""
    usd_an_hour: float | None
    benchmarks: float = 0.0
    """Seconds of all evaluations on eval.benchmarks."""
    samples: bool = True
    """Whether a step samples: SFT only does so in evaluations."""

    @property
    def attempt(self) -> float:
        """The last to be written are judged when nothing is left to write."""
        return max(self.generate + self.judge / self.waves, self.judge) if self.samples else 0.0

    @property
    def step(self) -> float:
        return self.attempt + self.learn + self.publish

    @property
    def hours(self) -> float:
        """Without starting up and saving."""
        return (self.steps * self.step + self.evaluations * self.evaluation + self.benchmarks) / 3600

    @property
    def usd(self) -> float | None:
        return None if self.usd_an_hour is None else self.usd_an_hour * self.hours

    def as_json(self) -> dict[str, float | int | None]:
        return {
            "generate_s": self.generate,
            "judge_s": self.judge,
            "attempt_s": self.attempt,
            "learn_s": self.learn,
            "publish_s": self.publish,
            "step_s": self.step,
            "evaluation_s": self.evaluation,
            "decode_tokens_per_s": self.answered / self.generate,
            "hours": self.hours,
            "usd": self.usd,
        }


def reckon(
    config: RunConfig, players: Mapping[str, Player], layout: Layout, work: Work, cache: Cache | None, language: str
) -> Times:
    """What a run takes there; `cache` is what its own engine has room for."""
    generate, learn, publish = 0.0, list[float](), list[float]()
    waves = 1
    for role, player in players.items():
        itemsize = 4 if layout.gpu is None and player.config.model.dtype != "bfloat16" else 2
        machine = Machine(layout.device, itemsize)
        own = layout.of(role)
        slots = _slots(machine, player, work, role, cache)
        devices = max(1, own.servers if own.apart else layout.servers // len(players))  # each has one model
        sequences = math.ceil(work.sequences / devices)
        waves = max(1, math.ceil(sequences / max(1, slots)))
        asked = math.ceil(work.asked(role) / devices)
        engine = replace(machine, gpus=player.config.rollout.tensor_parallel_size)
        generate += generate_s(engine, player.shape, work.lengths[role], sequences, asked, slots)
        learned = player.shape.parameters if config.train.lora is None else 0
        updates = work.updates * optimizer_s(machine, player, learned, own)
        learn.append(player.config.train.ppo_epochs * (learn_s(machine, player, work, role, own) + updates))
        publish.append(_publish_s(machine, player, own))
    together = max if layout.apart else sum  # on a Ray cluster the roles update at the same time
    generate += (SAMPLE_S if layout.gpu else CPU_SAMPLE_S) * work.sequences
    judge = _judge_s(config, layout, work.sequences, language)
    answer = (generate / len(players) + judge) / work.sequences
    benchmarks = [
        (2 + (config.steps - 1) // each.every) * (each.problems or 0) * each.samples  # all: how many is not known here
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
        sum(work.answered(role) for role in players),
        layout.usd,
        sum(benchmarks) * answer,
        samples=config.algo.name != "sft",
    )


def _slots(machine: Machine, player: Player, work: Work, role: str, cache: Cache | None) -> int:
    if player.config.rollout.engine == "remote":
        return max(1, server_slots(machine, player.shape, work.lengths[role]))
    return max(1, cache.slots) if cache else player.config.rollout.slots


def judge_core_s(config: RunConfig, language: str) -> float:
    """Seconds of a core that an answer takes."""
    if isinstance(config.task, CodeConfig):
        return PROGRAM_CORE_S.get(language, PROGRAM_CORE_S["cpp17"])
    return ANSWER_CORE_S.get(config.task.name, 1e-4)


def _judge_s(config: RunConfig, layout: Layout, answers: int, language: str) -> float:
    if isinstance(config.task, CodeConfig) and config.judge.url:
        return 0.0  # elsewhere, and nobody knows how fast
    machines = layout.nodes if layout.apart else 1
    workers = min(config.judge.workers * machines or layout.cores, layout.cores)
    return answers * judge_core_s(config, language) / workers


def _publish_s(machine: Machine, player: Player, layout: Layout) -> float:
    size = machine.itemsize * player.shape.parameters
    if layout.apart and layout.gpu and player.config.rollout.engine != "remote":  # by the memory of the machines
        between = size / (1e9 * layout.gpu.network) if layout.nodes > 1 else 0.0
        return 2 * size / HOST_LINK + between
    if player.config.rollout.engine == "torch":
        return 4 * size / machine.bandwidth
    if player.config.rollout.transfer == "delta":
        return 4 * size / machine.bandwidth + size / 30 / DISK
    return 2 * size / DISK
