"""Rules on cost: stages of a step that wait for each other."""

from statistics import fmean

from dojang.diagnosis.findings import Finding, Severity
from dojang.diagnosis.held_out import HeldOut
from dojang.diagnosis.record import RunRecord

__all__ = ["idle_engine", "idle_trainer"]

IDLE = 0.5
"""Share of the time in which a stage waits that is worth a change: half of the hardware is unused."""
SHORT = 1.0
"""Seconds of a step below which waiting costs nothing: trial runs on a CPU."""


def idle_trainer(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """The trainer waits for rollouts."""
    share = _share(run, "perf/idle/trainer")
    if share is None:
        return None
    rollout = run.values("timing_s/rollout")[1:] or [0.0]
    mode = run.setting("loop.mode", "sync")
    advice = [
        "more or faster engines: runtime.engines on Ray, vLLM servers (rollout.engine), loop.workers with "
        "loop.mode=stream",
        "shorter rollouts: a smaller rollout.max_tokens; more judge.workers or a faster reward function if grading is "
        "what takes the time",
    ]
    if mode == "sync":
        advice.insert(0, "let rollouts and updates overlap: loop.mode=overlap, or stream with several workers")
    return Finding(
        "idle_trainer",
        Severity.NOTE,
        f"the trainer waits for rollouts {share:.0%} of the time",
        [f"perf/idle/trainer {share:.0%}; timing_s/rollout {fmean(rollout):.3g} s; loop.mode={mode}"],
        advice,
    )


def idle_engine(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """The engine waits for new weights."""
    share = _share(run, "perf/idle/engine")
    if share is None or run.setting("loop.mode", "sync") == "sync" or not run.trains_on_rewards:
        return None
    update = run.values("timing_s/update")[1:] or [0.0]
    return Finding(
        "idle_engine",
        Severity.NOTE,
        f"the engine waits for the trainer {share:.0%} of the time",
        [f"perf/idle/engine {share:.0%}; timing_s/update {fmean(update):.3g} s; loop.lag={run.setting('loop.lag', 1)}"],
        [
            "more trainers (runtime.trainers), a larger train.max_tokens_per_microbatch, or "
            "train.gradient_checkpointing=false if memory allows",
            "use the idle time: a larger rollout.group_size, or loop.lag=2",
        ],
    )


def _share(run: RunRecord, name: str) -> float | None:
    """Mean idle share if it matters; the first step fills the pipeline and does not count."""
    shares, seconds = run.values(name)[1:], run.values("timing_s/step")[1:]
    if len(shares) < 3 or len(shares) != len(seconds) or fmean(seconds) < SHORT:
        return None
    # By time, not by step: a long step counts more.
    share = sum(part * length for part, length in zip(shares, seconds, strict=True)) / sum(seconds)
    return share if share > IDLE else None
