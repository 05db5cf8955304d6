"""Rules on what the reward pays for: format only, reward hacking, unrelated rewards, overfitting, too few tests."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from dojang.core.run_dir import ACCURACY
from dojang.diagnosis.findings import Finding, Learning, Severity
from dojang.diagnosis.held_out import HeldOut
from dojang.diagnosis.record import RunRecord
from dojang.diagnosis.trends import MIN_STEPS, Trend

__all__ = [
    "format_only",
    "hidden_hacking",
    "learned_nothing",
    "overfitting",
    "reward_hacking",
    "reward_unrelated",
    "too_few_tests",
    "unclear_accuracy",
]

RISEN = 0.05
"""Rise of a share between 0 and 1, from the first to the last steps, that counts as learning."""
NEVER_RIGHT = 0.02
"""Share of accepted samples, in the best step, below which right answers are accidents."""
GAP = 0.15
"""Training accuracy over held-out accuracy that counts as overfitting. Sampling makes training accuracy lower, and
intervals of 256 problems are 6 points wide on either side."""
FEW_TESTS = 2
"""Tests of a problem that wrong programs pass often: the audit of datasets with 1 to 2 tests accepts constants."""
ENOUGH_SAMPLES = 20
"""Right and wrong samples each from which their mean rewards are compared."""
UNRELATED = 0.05
"""Advantage of right samples in the mean reward, as a share of the range of rewards, that teaches nothing."""
_SCANNED_FILES = 500
"""Steps whose rollouts are read to count problems."""
_CORRECTNESS = ("correct", "fraction", "gsm8k_post_correct")
"""Parts of the reward that measure correctness: their rise is what a run is for."""


def format_only(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """A format part of the reward rises, correctness does not."""
    found = _paying_part(run, held_out)
    if found is None or "format" not in found[0]:
        return None
    name, trend, accepted = found
    advice = [
        f"lower the weight of {name} in task.rewards (0.1 instead of 0.5), so that a right answer matters most",
        "train on easier problems or raise rollout.group_size: if no sample is right, only the format pays",
        "start from a stronger or fine-tuned model (algo.name=sft)",
    ]
    rest = "correct answers did not"
    if max(run.accepted) < NEVER_RIGHT:  # then another weight would leave no signal at all
        rest = "hardly a sample was ever right"
        advice[0] = (
            "read the samples: does the prompt ask for the answers in the data, and is the chat template that of the "
            "model (`dojang show`, `dojang data audit`)?"
        )
    return Finding(
        "format_only",
        Severity.FAULT,
        f"only the format was learned: {name} rose from {trend.first:.2f} to {trend.last:.2f}, {rest}",
        _evidence(run, held_out, name, trend, accepted),
        advice,
        run.examples(part=name, outcome="wrong"),
        explains=frozenset({"learned_nothing", "length_drift"}),
    )


def reward_hacking(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """A part of the reward other than correctness or format rises, and accuracy does not."""
    found = _paying_part(run, held_out)
    if found is None or "format" in found[0]:
        return None
    name, trend, accepted = found
    return Finding(
        "reward_hacking",
        Severity.FAULT,
        f"the reward rises, accuracy does not: {name} pays for something else",
        _evidence(run, held_out, name, trend, accepted),
        [
            f"read the samples below, then change {name} so that what they do earns nothing, or lower its weight in "
            "task.rewards",
            "let the correct answer be the largest part of the reward; give other parts to correct answers only",
            "hold the policy near the start with algo.kl_coef=0.001",
        ],
        run.examples(part=name),
        explains=frozenset({"learned_nothing", "entropy_collapse", "run_on", "truncated", "reward_unrelated"}),
    )


def hidden_hacking(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """A reward without parts rises, and held-out accuracy does not."""
    reward, accepted = Trend.of(run.values("critic/rewards/mean")), Trend.of(run.accepted)
    if reward is None or accepted is None or held_out is None or run.parts() or not run.trains_on_rewards:
        return None
    if not reward.rose(0.0) or accepted.rose(RISEN) or held_out.learning not in (Learning.SAME, Learning.WORSE):
        return None
    return Finding(
        "reward_hacking",
        Severity.FAULT,
        "the reward rises, accuracy does not: it pays for something other than right answers",
        [
            f"critic/rewards/mean: {reward.first:.3g} at first, {reward.last:.3g} at last",
            f"accepted in training: {accepted.first:.1%} at first, {accepted.last:.1%} at last",
            str(held_out),
        ],
        [
            "read the samples below, then change the reward so that what they do earns nothing",
            "return the parts of the reward (Verdict.parts): their means become metrics, and this report names the "
            "part that pays",
        ],
        run.examples(outcome="wrong"),
        explains=frozenset({"learned_nothing", "entropy_collapse", "reward_unrelated"}),
    )


def reward_unrelated(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Accepted samples earn no more than others."""
    if not run.trains_on_rewards or held_out is None or held_out.improved:
        return None
    columns = ("outcome", "reward")
    found = [*run.first_samples(columns), *run.last_samples(columns)]  # at last there may be no right ones
    judged = [each for each in found if each["reward"] is not None]
    right = [each["reward"] for each in judged if each["outcome"] == "accepted"]
    wrong = [each["reward"] for each in judged if each["outcome"] != "accepted"]
    if min(len(right), len(wrong)) < ENOUGH_SAMPLES:
        return None
    spread, gap = max(right + wrong) - min(right + wrong), fmean(right) - fmean(wrong)
    if spread == 0 or gap > UNRELATED * spread:
        return None
    return Finding(
        "reward_unrelated",
        Severity.FAULT,
        f"right answers earn no more than wrong ones: {fmean(right):.3g} and {fmean(wrong):.3g} on average",
        [
            f"{len(right)} accepted and {len(wrong)} other samples of the first and last steps, rewards from "
            f"{min(right + wrong):.3g} to {max(right + wrong):.3g}",
            str(held_out),
        ],
        [
            "check the reward functions, their signs and their weights (task.rewards): a right answer must earn more "
            "than a wrong one",
            "let the correct answer be the largest part of the reward",
        ],
        run.examples(outcome="accepted"),
        explains=frozenset({"learned_nothing"}),
    )


def overfitting(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Training accuracy goes on rising, held-out accuracy has stopped or falls."""
    accepted = Trend.of(run.accepted)
    if held_out is None or accepted is None or not run.trains_on_rewards:
        return None
    gap, gap_at_start = accepted.last - held_out.after, accepted.first - held_out.before
    points = [row[ACCURACY] for row in run.evaluations]
    # With two evaluations the whole run is the second half.
    stalled = held_out.after - points[(len(points) - 1) // 2] < RISEN
    # A gap twice as large is overfitting even if held-out accuracy still rises: a handful of problems does that.
    if not accepted.rose(RISEN) or gap < GAP or gap - gap_at_start < GAP / 2 or not (stalled or gap > 2 * GAP):
        return None
    return Finding(
        "overfitting",
        Severity.WARNING if held_out.improved else Severity.FAULT,
        f"overfitting: {accepted.last:.0%} of the samples are right in training, {held_out.after:.0%} held out",
        [
            f"accepted in training: {accepted.first:.1%} at first, {accepted.last:.1%} at last",
            str(held_out),
            *_passes(run),
            *_entropy(run),
        ],
        [
            "train on more problems (data.limit, data.train_size), or for fewer passes: lower steps or epochs",
            "use the checkpoint with the best held-out accuracy (checkpoints/best)",
            "keep the policy near the start: algo.kl_coef=0.001; keep it exploring: algo.entropy.coef",
        ],
        run.examples(outcome="accepted"),
        explains=frozenset({"learned_nothing"}),
    )


def too_few_tests(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Most problems have at most two tests, which wrong programs often pass."""
    if run.setting("task.name") != "code" or run.setting("tester") or not run.trains_on_rewards:
        return None
    tests = {sample["problem"]: sample["total"] or 0 for sample in run.last_samples(("problem", "total"))}
    few = [name for name, total in tests.items() if 0 < total <= FEW_TESTS]
    if not tests or 2 * len(few) < len(tests):
        return None
    return Finding(
        "too_few_tests",
        Severity.WARNING,
        f"{len(few)} of {len(tests)} problems have at most {FEW_TESTS} tests: wrong programs may be accepted",
        [
            f"problems of the last steps by number of tests: {_counts(tests)}",
            f"task.max_tests={run.setting('task.max_tests', 'null')}, task.tests={run.setting('task.tests', '?')}",
            *([str(held_out)] if held_out else []),
        ],
        [
            "raise task.max_tests, set task.tests=all, or add tests to the data",
            "`dojang data audit` shows which problems accept wrong programs; leave those out",
        ],
        run.examples(outcome="accepted"),
    )


def learned_nothing(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Held-out accuracy is not better than before, and no other rule says why."""
    if held_out is None or held_out.learning not in (Learning.SAME, Learning.WORSE) or len(run.steps) < 2:
        return None
    losses = [row["val/loss"] for row in run.evaluations if "val/loss" in row]
    if len(losses) > 1 and losses[-1] < losses[0] and held_out.learning is Learning.SAME:
        return None  # supervised fine-tuning that lowers the loss has learned something
    worse = held_out.learning is Learning.WORSE
    evidence = [str(held_out)]
    if reward := Trend.of(run.values("critic/rewards/mean")):
        evidence.append(f"critic/rewards/mean: {reward.first:.3g} at first, {reward.last:.3g} at last")
    if len(losses) > 1:
        evidence.append(f"val/loss: {losses[0]:.4g} before, {losses[-1]:.4g} after")
    return Finding(
        "learned_nothing",
        Severity.FAULT,
        "held-out accuracy got worse" if worse else "learned nothing: held-out accuracy is not better than before",
        evidence,
        [
            "read the samples in rollouts/*.parquet: are right answers accepted, and no others? (`dojang data audit`)",
            "train for more steps, or with another train.lr; compare the figures with those in docs/results",
            "check that the held-out problems are of the kind the run trains on",
        ],
        run.examples(outcome="wrong"),
    )


def unclear_accuracy(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """The held-out problems are too few to tell whether accuracy rose."""
    if held_out is None or held_out.problems is None or held_out.learning is not Learning.UNCLEAR:
        return None
    return Finding(
        "unclear_accuracy",
        Severity.NOTE,
        "too few held-out problems to tell whether accuracy rose",
        [str(held_out)],
        [f"raise eval.problems (now {held_out.problems}), or compare with `dojang eval` on a larger set"],
    )


def _paying_part(run: RunRecord, held_out: HeldOut | None) -> tuple[str, Trend, Trend] | None:
    """Part of the reward that rose most by its weight, if the reward rose and accuracy did not."""
    reward, accepted = Trend.of(run.values("critic/rewards/mean")), Trend.of(run.accepted)
    if reward is None or accepted is None or not run.trains_on_rewards:
        return None
    if not reward.rose(0.0) or accepted.rose(RISEN) or (held_out and held_out.improved):
        return None
    weights = run.setting("task.rewards", {})
    trends = {
        name: trend
        for name, values in run.parts().items()
        if name not in _CORRECTNESS and (trend := Trend.of(values)) and trend.rose(RISEN)
    }
    if not trends:
        return None
    name = max(trends, key=lambda each: trends[each].change * _weight(weights, each))
    return (name, trends[name], accepted) if trends[name].change * _weight(weights, name) > 0 else None


def _weight(weights: object, name: str) -> float:
    """Weight of a part in task.rewards; a part of a custom function package.module:name is called name."""
    known = weights if isinstance(weights, Mapping) else {}
    found = next((value for key, value in known.items() if str(key).rpartition(":")[2] == name), 1.0)
    found = found.get("weight", 1.0) if isinstance(found, Mapping) else found
    return float(found) if isinstance(found, int | float) else 1.0


def _evidence(run: RunRecord, held_out: HeldOut | None, name: str, trend: Trend, accepted: Trend) -> list[str]:
    found = [
        f"critic/rewards/{name}/mean: {trend.first:.3g} at first, {trend.last:.3g} at last "
        f"(weight {_weight(run.setting('task.rewards', {}), name):g})",
        f"accepted in training: {accepted.first:.1%} at first, {accepted.last:.1%} at last",
    ]
    return [*found, str(held_out)] if held_out else found


def _passes(run: RunRecord) -> list[str]:
    """Number of times that each problem was drawn, from the rollouts."""
    drawn: set[tuple[str, int]] = set()
    for row in run.steps[-_SCANNED_FILES:]:
        drawn |= {(each["problem"], each["prompt_index"]) for each in _problems(run, int(row["step"]))}
    problems = {problem for problem, _ in drawn}
    if len(run.steps) < MIN_STEPS or not problems:
        return []
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return [f"{count}, drawn {len(drawn) / len(problems):.1f} times each"]


def _problems(run: RunRecord, step: int) -> list[dict[str, Any]]:
    return run.samples("train", step, ("problem", "prompt_index"))


def _entropy(run: RunRecord) -> list[str]:
    trend = Trend.of(run.values("actor/entropy"))
    return [f"actor/entropy: {trend.first:.3g} at first, {trend.last:.3g} at last"] if trend else []


def _counts(tests: Mapping[str, int]) -> str:
    numbers = sorted(set(tests.values()))
    shown = [f"{number} tests: {sum(each == number for each in tests.values())}" for number in numbers[:5]]
    return ", ".join(shown) + (", ..." if len(numbers) > 5 else "")
