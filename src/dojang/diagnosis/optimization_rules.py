"""Rules on the optimization: a learning rate that moves nothing or too much, KL and gradient blow-up, stale samples."""

from collections.abc import Sequence
from statistics import fmean, median

from dojang.diagnosis.findings import Finding, Learning, Severity
from dojang.diagnosis.held_out import HeldOut, same_answers
from dojang.diagnosis.record import RunRecord
from dojang.diagnosis.signal_rules import NO_SIGNAL
from dojang.diagnosis.trends import MIN_STEPS, Trend, last_steps, window

__all__ = ["kl_blow_up", "lr_too_large", "lr_too_small", "stale_samples"]

UNMOVED_ANSWERS = 0.95
"""Share of greedy held-out completions that stay the same, token by token, if the weights hardly move."""
UNMOVED_KL = 1e-5
"""KL per token to the rollout policy of an update without effect, where held-out completions are missing: steps of runs
that learn have 1e-4 and more."""
UNMOVED_ENTROPY = 0.05
"""Relative change of the entropy that goes with it."""
ROUNDINGS = 1.5
"""Log-prob differences to older versions, over those of the same version, from which weights have moved."""
ROUNDING = 1e-4
"""Log-prob difference in nats that float32 may have."""
WARM = 0.5
"""Share of the learning rate that a warmup should reach within the run."""
LARGE_KL_COEF = 0.1
"""Coefficient from which the KL term outweighs rewards; 0.001 to 0.01 is usual."""
LOST_ACCURACY = 0.1
"""Fall of the training accuracy from its peak that is no noise of a batch of a hundred samples (5 points)."""
LOST_REWARD = 0.15
"""Fall of the mean reward from its peak, as a share of the range of rewards, where the reward has no accuracy."""
NOISES = 3.0
"""Standard errors of a fall: the peak is chosen among many windows, so two would raise false alarms."""
ENTROPY_RISE = 1.5
"""Rise of the entropy from its lowest value that is the work of an entropy bonus; runs that learn lower it."""
KL_PER_STEP = 0.3
"""KL to the rollout policy in nats per token, as in the alert DojangKLBlowUp."""
KL_TO_REFERENCE = 1.0
"""KL to the reference model in nats per token, as in the alert DojangKLBlowUp."""
GRADIENT_SPIKE = 100.0
"""Gradient norm over its median, as in the alert DojangGradient."""
STALE = 1.5
"""Mean staleness in versions above which samples are older than a pipeline of one step needs."""
STALE_CLIPPED = 0.1
"""Share of clipped tokens that is lost to staleness; runs with a lag of 1 clip less than 0.02."""


def lr_too_small(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Groups have a signal, but nothing moves: reward, entropy and completions stay the same."""
    reward, entropy = Trend.of(run.values("critic/rewards/mean")), Trend.of(run.values("actor/entropy"))
    if reward is None or entropy is None or not run.trains_on_rewards:
        return None
    if _equal_groups(run) >= NO_SIGNAL or reward.rose(0.02) or (held_out and held_out.improved):
        return None
    same = same_answers(run, held_out) if held_out else None
    coef = run.setting("algo.kl_coef", 0.0)
    held_by_kl = coef >= LARGE_KL_COEF and held_out is not None and held_out.learning is Learning.SAME
    if not held_by_kl and not _unmoved(run, reward, entropy, same):
        return None
    evidence = [
        f"critic/rewards/mean: {reward.first:.3g} at first, {reward.last:.3g} at last",
        f"actor/entropy: {entropy.first:.4g} at first, {entropy.last:.4g} at last",
        *(shown for shown in (_largest(run, "actor/ppo_kl"), _largest(run, "actor/kl_loss")) if shown),
    ]
    if same is not None:
        evidence.append(f"{same:.0%} of the held-out completions are the same before and after")
    rates = run.values("actor/lr")
    rate = run.setting("train.lr", rates[-1] if rates else "?")
    cause = f"train.lr={rate} is too small"
    advice = [
        "raise train.lr by a factor of 3 to 10 (1e-6 to 3e-6 for full fine-tuning of large models, 1e-5 to 1e-4 "
        "for LoRA, 3e-4 for the quickstart models)",
        "train for more steps; check train.warmup_steps and train.schedule: actor/lr has the rate of every step",
    ]
    if rates and isinstance(rate, float) and max(rates) < WARM * rate:
        warmup = run.setting("train.warmup_steps", 0) or f"{run.setting('train.warmup_ratio', 0)} of the run"
        cause = f"the warmup is too long: actor/lr reached {max(rates):.2g}, train.lr is {rate:g}"
        advice.insert(0, f"lower train.warmup_steps or train.warmup_ratio (now {warmup})")
    if held_by_kl:
        cause = f"algo.kl_coef={coef:g} holds it at the reference model"
        advice.insert(0, f"lower algo.kl_coef (now {coef:g}) to 0.001 or 0")
    return Finding(
        "lr_too_small",
        Severity.FAULT,
        f"the policy hardly moves: {cause}, or {len(run.steps)} steps are too few",
        evidence,
        advice,
        explains=frozenset({"learned_nothing"}),
    )


def _unmoved(run: RunRecord, reward: Trend, entropy: Trend, same: float | None) -> bool:
    """Whether neither completions nor log-probs nor the entropy changed. `same` is the share of equal completions."""
    if _logprobs_move(run) or abs(entropy.change) > UNMOVED_ENTROPY * entropy.first:
        return False
    if same is not None:  # rewards of other prompts may fall by chance
        return same >= UNMOVED_ANSWERS
    kl = [abs(value) for value in run.values("actor/ppo_kl")]
    return bool(kl) and max(kl) < UNMOVED_KL and not reward.fell(0.02)


def lr_too_large(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Training accuracy or reward falls after it has risen, or from the start, and does not recover."""
    if not run.trains_on_rewards or (held_out and held_out.improved and not _fell(held_out)):
        return None
    fall = _fall_from_peak(run.accepted, LOST_ACCURACY)
    reward = run.values("critic/rewards/mean")
    bounds = [*run.values("critic/rewards/max"), *run.values("critic/rewards/min")]
    lost = _fall_from_peak(reward, LOST_REWARD * (max(bounds) - min(bounds))) if bounds else None
    if lost is None:
        return None  # accuracy that falls while the reward does not is reward hacking
    peak, last, at = lost
    step = run.points("critic/rewards/mean")[at][0]
    evidence = [f"critic/rewards/mean: {peak:.3g} around step {step}, {last:.3g} at last"]
    if fall:
        evidence.append(f"accepted in training: {fall[0]:.1%} at best, {fall[1]:.1%} at last")
    if held_out:
        evidence.append(str(held_out))
    evidence += [shown for shown in (_largest(run, "actor/ppo_kl"), _largest(run, "actor/grad_norm")) if shown]
    advice = [
        f"lower train.lr (now {run.setting('train.lr', '?')}) by a factor of 3 to 10, raise train.warmup_steps",
        "hold the policy near the start: algo.kl_coef=0.001, a smaller algo.clip_high, fewer train.minibatches "
        "and train.ppo_epochs",
        "the best checkpoint (checkpoints/best) is from before the fall",
    ]
    if bonus := _entropy_bonus(run):
        evidence.append(bonus)
        advice.insert(
            0,
            f"lower algo.entropy.coef (now {run.setting('algo.entropy.coef', 0)}): the entropy bonus pays "
            "for random tokens",
        )
    return Finding(
        "lr_too_large",
        Severity.FAULT,
        f"the policy got worse: the reward fell from {peak:.3g} to {last:.3g} and did not recover",
        evidence,
        advice,
        explains=frozenset(
            {"learned_nothing", "no_answers", "length_drift", "no_signal", "truncated", "reward_unrelated"}
        ),
    )


def kl_blow_up(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """A step moves the policy too far, or it is far from the reference model, or gradients have spikes."""
    gradients = run.values("actor/grad_norm")
    size = window(len(run.steps))
    found = []
    for name, most in (("actor/ppo_kl", KL_PER_STEP), ("actor/kl_loss", KL_TO_REFERENCE)):
        last = run.values(name)[-size:]
        if last and fmean(last) > most:
            found.append(f"{name}: {fmean(last):.3g} nats per token in {last_steps(size)}, {most:g} is much")
    if len(gradients) >= MIN_STEPS and max(gradients) > GRADIENT_SPIKE * median(gradients) > 0:
        found.append(f"{_largest(run, 'actor/grad_norm')}, median {median(gradients):.3g}")
    if not found or not run.trains_on_rewards:
        return None
    rate = f"{run.role}.lr" if run.role else "train.lr"
    return Finding(
        "kl_blow_up",
        Severity.FAULT if held_out and not held_out.improved else Severity.WARNING,
        "updates move the policy too far",
        found,
        [
            f"lower {rate} (now {run.setting(rate, '?')}) or train.max_grad_norm",
            "use fewer train.minibatches and train.ppo_epochs, a smaller algo.clip_high, or a larger algo.kl_coef",
        ],
        explains=frozenset({"learned_nothing"}),
    )


def stale_samples(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Samples are old, and many of their tokens are clipped."""
    ages, clipped = run.values("staleness/mean"), run.values("actor/pg_clipfrac")
    if len(ages) < MIN_STEPS or not clipped or not run.trains_on_rewards:
        return None
    size = max(2, len(ages) // 2)
    age, share = fmean(ages[-size:]), max(fmean(clipped[-size:]), fmean(clipped))
    if age < STALE or share < STALE_CLIPPED:
        return None
    limit = run.setting("loop.lag", 1)
    return Finding(
        "stale_samples",
        Severity.FAULT if held_out and not held_out.improved else Severity.WARNING,
        f"samples are {age:.1f} versions old on average, and {share:.0%} of their tokens are clipped",
        [
            f"staleness/mean {age:.2g}, staleness/max {max(run.values('staleness/max'), default=0):g}; "
            f"loop.lag={limit}",
            f"actor/pg_clipfrac: {share:.1%}; {_largest(run, 'actor/ppo_kl')}",
        ],
        [
            "lower loop.lag to 1 or 2",
            "correct for the age: algo.corrections, or algo.name=m2po, made for stale samples",
            f"lower train.lr (now {run.setting('train.lr', '?')}): old samples differ less",
        ],
        explains=frozenset({"lr_too_large", "kl_blow_up", "learned_nothing", "entropy_collapse"}),
    )


def _logprobs_move(run: RunRecord) -> bool:
    """Whether log-probs change from version to version by more than rounding, which samples of age 0 show."""
    rounding, gaps = run.values("actor/logprob_diff/mean"), run.values("actor/logp_gap")
    ages = run.values("staleness/mean")
    if not (rounding and gaps and ages) or ages[-1] == 0:
        return False
    return gaps[-1] > ROUNDINGS * rounding[0] + ROUNDING


def _entropy_bonus(run: RunRecord) -> str:
    """Evidence that an entropy bonus drove the entropy up; empty if it did not."""
    points = run.points("actor/entropy")
    if not points or not (run.setting("algo.entropy.coef") or run.setting("algo.entropy.target")):
        return ""
    low, last = min(points, key=lambda point: point[1]), points[-1]
    if last[1] < ENTROPY_RISE * low[1]:
        return ""
    return f"actor/entropy: {low[1]:.3g} at step {low[0]}, {last[1]:.3g} at step {last[0]}, with an entropy bonus"


def _equal_groups(run: RunRecord) -> float:
    return sum(run.values("groups/zero_variance")) / max(1.0, sum(run.values("groups/total")))


def _fell(held_out: HeldOut) -> bool:
    return held_out.after < held_out.before


def _fall_from_peak(values: Sequence[float], least: float) -> tuple[float, float, int] | None:
    """Highest mean of a window, the last mean, and the place of the highest, if the fall exceeds noise and `least`."""
    trend = Trend.of(values)
    if trend is None:
        return None
    size = window(len(values))
    means = [fmean(values[at : at + size]) for at in range(len(values) - size + 1)]
    at = max(range(len(means)), key=means.__getitem__)
    if means[at] - trend.last <= max(least, NOISES * trend.noise):
        return None
    return means[at], trend.last, at


def _largest(run: RunRecord, name: str) -> str:
    points = run.points(name)
    if not points:
        return ""
    step, value = max(points, key=lambda point: abs(point[1]))
    return f"{name}: largest {value:.3g} (step {step})"
