"""Rules on completions: truncated, running on after the answer, without an answer, drifting in length."""

from collections.abc import Sequence
from statistics import StatisticsError, correlation, fmean
from typing import Any

from dojang.diagnosis.findings import Finding, Severity
from dojang.diagnosis.held_out import HeldOut
from dojang.diagnosis.record import RunRecord
from dojang.diagnosis.trends import MIN_STEPS, Trend, last_steps, window
from dojang.loop.health_check import MANY_CUT, MANY_RUN_ON

__all__ = ["length_drift", "no_answers", "run_on", "truncated"]

NO_ANSWERS = 0.8
"""Share of completions without an answer at the end of a run above which the format, not the problem, is the fault."""
MANY_TIMES_LONGER = 2.0
"""Growth of the completion length that is a drift if accuracy does not rise; learning to reason may double it too."""
NONE_ENDS = 0.9
"""Share of completions cut at the limit from which it is the end token, not the limit, that is wrong."""
PAYS_FOR_LENGTH = 0.5
"""Correlation of reward and length from which the reward is the likely cause of a drift."""


def truncated(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Many completions are cut at rollout.max_tokens, and not after their answer."""
    cut, after = run.points("response_length/clip_ratio"), run.values("response/cut_after_answer")
    if not cut or not run.trains_on_rewards:
        return None
    size = window(len(cut))
    last = fmean(value for _, value in cut[-size:]) - (fmean(after[-size:]) if after else 0.0)
    if last <= MANY_CUT:
        return None
    key = f"{run.role}.max_tokens" if run.role else "rollout.max_tokens"
    limit = run.setting(key, "?")
    lengths = run.values("response_length/mean")
    return Finding(
        "truncated",
        Severity.FAULT if last > 2 * MANY_CUT else Severity.WARNING,
        f"{last:.0%} of the completions are cut at max_tokens={limit}",
        [
            f"response_length/clip_ratio: {cut[0][1]:.0%} in step {cut[0][0]}, {last:.0%} in {last_steps(size)}",
            *([f"mean length {fmean(lengths[-size:]):.0f} of {limit} tokens"] if lengths else []),
        ],
        [
            f"raise {key} (and rollout.max_model_len where it is set)",
            "ask for shorter answers in the prompt, or penalize length: algo.overlong_buffer_fraction=0.2",
            "leave them out of the loss: train.mask_truncated_completions=true",
        ],
        run.examples(finish="length"),
        explains=frozenset({"no_signal", "no_answers", "learned_nothing", "lr_too_small", "entropy_collapse"}),
    )


def run_on(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Completions go on after their answer until they are cut."""
    shares = run.points("response/cut_after_answer")
    if not shares or not run.trains_on_rewards:
        return None
    size = window(len(shares))
    last = fmean(value for _, value in shares[-size:])
    cut = fmean(run.values("response_length/clip_ratio")[-size:] or [last])
    if last <= MANY_RUN_ON:
        return None
    evidence = [
        f"response/cut_after_answer: {shares[0][1]:.0%} in step {shares[0][0]}, {last:.0%} in {last_steps(size)}"
    ]
    advice = [
        f"set task.stop_at to another value than {run.setting('task.stop_at', 'never')}, or data.stop to a text "
        "that follows the answers",
        "reward completions that end with their answer (docs/rewards.md)",
    ]
    harmless = held_out is None or held_out.improved
    explains = set() if harmless else {"format_only", "no_answers", "no_signal", "learned_nothing", "lr_too_small"}
    if cut >= NONE_ENDS:
        evidence.append(f"response_length/clip_ratio {cut:.0%}: hardly a completion ends by itself")
        advice.insert(
            0,
            "check the model's end token: eos_token_id in generation_config.json and config.json must be "
            "the token that ends a turn of the chat template",
        )
        explains |= {"truncated", "length_drift"}
    return Finding(
        "run_on",
        Severity.WARNING if harmless else Severity.FAULT,
        f"{last:.0%} of the completions run on after their answer until they are cut at max_tokens",
        evidence,
        advice,
        run.examples(finish="length"),
        explains=frozenset(explains),
    )


def no_answers(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Hardly a completion has an answer that the task can read."""
    shares = run.values("judge/outcome/no_answer", 0.0)
    if len(shares) < 2 or not run.trains_on_rewards:
        return None
    size = window(len(shares))
    last = fmean(shares[-size:])
    if last < NO_ANSWERS:
        return None
    rewards = run.values("critic/rewards/mean")
    paying = [name for name, values in run.parts().items() if values and abs(values[-1]) > 0.01]
    evidence = [f"judge/outcome/no_answer: {shares[0]:.0%} in the first step, {last:.0%} in {last_steps(size)}"]
    if paying and rewards:
        evidence.append(f"the reward, {rewards[0]:.3g} at first and {rewards[-1]:.3g} at last, is that of {paying}")
    return Finding(
        "no_answers",
        Severity.FAULT,
        f"{last:.0%} of the completions have no answer that the task can read",
        evidence,
        [
            f"say in the prompt how the answer must look for task.name={run.setting('task.name', '?')}, or give "
            "few-shot examples",
            "fine-tune on completions in that form first (algo.name=sft), or start from a model that follows it",
            "reward the form itself (task.rewards has `format`), beside the correct answer",
        ],
        run.examples(outcome="no_answer"),
        explains=frozenset({"no_signal", "learned_nothing", "lr_too_small", "format_only", "reward_hacking"}),
    )


def length_drift(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Completions become much longer while accuracy does not rise."""
    lengths = Trend.of(run.values("response_length/mean"))
    accepted = Trend.of(run.accepted)
    if lengths is None or accepted is None or not run.trains_on_rewards or len(run.steps) < MIN_STEPS:
        return None
    grew = lengths.last / max(1.0, lengths.first)
    if grew < MANY_TIMES_LONGER or not lengths.rose(0.0) or accepted.rose(0.05) or (held_out and held_out.improved):
        return None
    evidence = [
        f"response_length/mean: {lengths.first:.0f} tokens at first, {lengths.last:.0f} at last",
        f"accepted in training: {accepted.first:.1%} at first, {accepted.last:.1%} at last",
    ]
    advice = [
        "penalize length: algo.overlong_buffer_fraction=0.2, or a length reward (docs/rewards.md)",
        "average the loss over the tokens of the whole step: algo.loss_aggregation=tokens",
    ]
    paid = _correlation([(len(each["response"]), each["reward"]) for each in _judged(run)])
    if paid is not None and paid >= PAYS_FOR_LENGTH:
        evidence.append(f"correlation of reward and length in the last steps: {paid:.2f}")
        advice.insert(0, "change the reward: it pays for length, not for right answers")
    return Finding(
        "length_drift",
        Severity.WARNING if held_out is None else Severity.FAULT,
        f"completions became {grew:.1f} times longer, and not more accurate",
        evidence,
        advice,
        run.examples(),
        explains=frozenset({"learned_nothing", "reward_hacking", "reward_unrelated"}),
    )


def _judged(run: RunRecord) -> list[dict[str, Any]]:
    return [each for each in run.last_samples(("response", "reward")) if each["reward"] is not None]


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's correlation; None if it is not defined."""
    try:
        return correlation([first for first, _ in pairs], [second for _, second in pairs])
    except StatisticsError:  # too few, or all equal
        return None
