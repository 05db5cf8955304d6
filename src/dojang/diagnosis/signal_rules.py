"""Rules on the training signal: groups whose rewards are all equal, and a policy without exploration."""

from collections import defaultdict
from statistics import fmean

from dojang.diagnosis.findings import Finding, Severity
from dojang.diagnosis.held_out import HeldOut
from dojang.diagnosis.record import RunRecord
from dojang.diagnosis.trends import Trend, window

__all__ = ["NO_SIGNAL", "entropy_collapse", "no_signal", "sampling_too_hot"]

NO_SIGNAL = 0.9
"""Share of groups with equal rewards above which steps are almost noise: 10% of 16 groups is one or two."""
MOSTLY = 0.9
"""Share of accepted samples from which groups count as all right; below 1 - MOSTLY as all wrong."""
COLLAPSED_SHARE = 0.1
"""Share of the first entropy that is left after a collapse; runs that learn keep 15% or more until they are solved."""
COLLAPSED_NATS = 0.02
"""Entropy per token below which samples of a prompt are copies of each other."""
HOT = 0.3
"""Training accuracy, as a share of the greedy held-out accuracy, below which sampling spoils most answers. Runs that
learn have 0.6 and more."""
ENOUGH_RIGHT = 0.1
"""Held-out accuracy from which the two can be compared."""
COPIES = 0.6
"""Share of groups with equal rewards that goes with a collapse."""
STUCK = 0.2
"""Share of groups without a right sample from which a collapse does harm: a policy that solves its problems becomes
deterministic as well."""


def no_signal(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """All rewards of a group are equal, in nearly all groups, from the start."""
    total, equal = run.values("groups/total"), run.values("groups/zero_variance")
    stopped = "no group had rewards that differ" in str(run.error.get("message", ""))
    if not run.trains_on_rewards or sum(total) == 0 or (len(total) < 2 and not stopped):
        return None
    share = sum(equal) / sum(total)
    if share < NO_SIGNAL or (held_out and held_out.improved and held_out.after > held_out.before):
        return None
    accepted = fmean(run.accepted) if run.accepted else 0.0
    low, high = min(run.values("critic/rewards/min"), default=0.0), max(run.values("critic/rewards/max"), default=0.0)
    rewards = f"all rewards are {low:g}" if low == high else f"rewards from {low:g} to {high:g}"
    evidence = [
        f"groups/zero_variance: {sum(equal):.0f} of {sum(total):.0f} groups in {len(total)} steps; {rewards}",
        f"accepted in training: {accepted:.1%}",
    ]
    kind, advice = _kind(accepted)
    return Finding(
        "no_signal",
        Severity.FAULT,
        f"no training signal: {share:.0%} of the groups have equal rewards, {kind}",
        evidence,
        advice,
        run.examples(),
        explains=frozenset({"learned_nothing", "lr_too_small", "entropy_collapse"}),
    )


def _kind(accepted: float) -> tuple[str, list[str]]:
    if accepted >= MOSTLY:
        return "all right: the problems are too easy", [
            "train on harder problems, or drop those that the model solves every time (`dojang data` filters)",
            "algo.max_resample_rounds=3 draws further prompts in place of such groups",
        ]
    if accepted <= 1 - MOSTLY:
        return "all wrong: the problems are too hard", [
            "train on easier problems first, or start from a stronger or fine-tuned model (algo.name=sft)",
            "raise rollout.group_size (16 or more) and rollout.temperature, so that some samples are right",
            "give credit for parts of an answer (task.reward_shape=fraction for programs, a further reward function)",
        ]
    return "whether right or wrong: the reward does not tell them apart", [
        "check the reward functions and their weights (task.rewards): a right answer must earn more than a wrong one",
        "raise rollout.group_size if groups are all right or all wrong, in equal parts",
    ]


def entropy_collapse(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """The policy has become deterministic before it has solved the problems."""
    points = run.points("actor/entropy")
    trend, accepted = Trend.of([value for _, value in points]), Trend.of(run.accepted)
    total, equal = run.values("groups/total"), run.values("groups/zero_variance")
    if trend is None or accepted is None or not run.trains_on_rewards:
        return None
    size = window(len(total))
    copies = sum(equal[-size:]) / max(1.0, sum(total[-size:]))
    collapsed = trend.last < max(COLLAPSED_SHARE * trend.first, min(COLLAPSED_NATS, trend.first / 2))
    if not collapsed or copies < COPIES or accepted.last >= MOSTLY:
        return None
    stuck = _all_wrong(run)
    if stuck is None:
        stuck = copies - accepted.last  # at most the accepted share of the groups is all right
    if stuck < STUCK:
        return None
    low = max(COLLAPSED_SHARE * trend.first, COLLAPSED_NATS)
    since = next((step for step, value in points if value < low), points[-1][0])
    return Finding(
        "entropy_collapse",
        Severity.WARNING if held_out and held_out.improved else Severity.FAULT,
        f"entropy collapsed from {trend.first:.3g} to {trend.last:.3g} nats, with {accepted.last:.0%} accepted",
        [
            f"actor/entropy: {trend.first:.3g} at first, {trend.last:.3g} at last, low since step {since}",
            f"{copies:.0%} of the last groups have equal rewards, {stuck:.0%} have no right sample: samples of a "
            "prompt are copies of each other",
            f"accepted in training: {accepted.first:.1%} at first, {accepted.last:.1%} at last",
        ],
        [
            f"lower train.lr (now {run.setting('train.lr', '?')}) and start again from the beginning or an earlier "
            "checkpoint",
            "keep entropy up: algo.entropy.coef=0.001 or a larger algo.clip_high (0.28, DAPO)",
            f"raise rollout.temperature (now {run.setting('rollout.temperature', 1.0)}) if it is below 1; add a KL "
            "term, algo.kl_coef=0.001",
        ],
        run.examples(outcome="wrong"),
        explains=frozenset({"no_signal", "learned_nothing", "lr_too_small", "lr_too_large", "format_only"}),
    )


def _all_wrong(run: RunRecord) -> float | None:
    """Share of the groups of the last steps without an accepted sample; None without the rollouts."""
    groups: defaultdict[tuple[int, int], bool] = defaultdict(bool)
    for each in run.last_samples(("step", "prompt_index", "outcome")):
        groups[each["step"], each["prompt_index"]] |= each["outcome"] == "accepted"
    return 1 - fmean(groups.values()) if groups else None


def sampling_too_hot(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Samples are far worse than greedy completions of the same model."""
    temperature = run.setting("rollout.temperature", 1.0)
    accepted = run.accepted
    if held_out is None or len(accepted) < 2 or not run.trains_on_rewards or temperature <= 1:
        return None
    size = window(len(accepted))
    last = fmean(accepted[-size:])
    if held_out.after < ENOUGH_RIGHT or last >= HOT * held_out.after:
        return None
    return Finding(
        "sampling_too_hot",
        Severity.FAULT,
        f"sampling spoils the answers: {last:.1%} are right in training, {held_out.after:.1%} held out",
        [
            f"rollout.temperature={temperature}, eval.temperature={run.setting('eval.temperature', 0)}",
            f"accepted in training: {fmean(accepted[:size]):.1%} at first, {last:.1%} at last",
            str(held_out),
        ],
        ["lower rollout.temperature to 1.0 or 0.8, or set rollout.top_p=0.95 with algo.old_logprobs=trainer"],
        run.examples(),
        explains=frozenset(
            {"no_signal", "no_answers", "learned_nothing", "format_only", "unclear_accuracy", "truncated"}
        ),
    )
