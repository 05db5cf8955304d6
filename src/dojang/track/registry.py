"""Every figure a run can write to metrics.jsonl: what it means, its unit, and the panel of the dashboard it is in.

The rooms that write them do not know this file. Tests hold it to what real runs write and to the names in the source,
so a new figure is a line here, too; docs/metrics.md, the dashboard and the help texts of the exporters are made from
it. Figures of an algorithm of one's own (`algo.name=custom`) are recorded and exported like the others, but nothing is
known of them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "GAUGES",
    "ROLES",
    "ROWS",
    "Figure",
    "Panel",
    "Row",
    "about",
    "figures",
    "find",
    "gauge_name",
    "gauge_pattern",
    "per_role",
]

ROLES = ("tester",)
"""Models beside the one a run is about. What they wrote and learned is recorded under the names of their roles."""
_OF_ROLES = ("critic/", "actor/", "response_length/", "groups/", "judge/")
"""What the figures begin with that each role has for itself."""

GAUGES = {
    "dojang_step": "The newest step.",
    "dojang_steps": "How many steps the run is to have.",
    "dojang_step_time_seconds": "When the newest line of metrics.jsonl was seen, in seconds since 1970.",
}
"""What exporters say besides the figures."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A name of metrics.jsonl, or a family of them."""

    name: str
    """What is in angle brackets stands for a name of the run's own: val/accuracy/<source>."""
    meaning: str
    unit: str = ""
    """None if it is a number without one."""

    @property
    def is_family(self) -> bool:
        return "<" in self.name


@dataclass(frozen=True, slots=True)
class Panel:
    """Figures that are looked at together; all have the same unit."""

    title: str
    figures: tuple[Figure, ...]
    stacked: bool = False
    """Whether they are parts of a whole."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels side by side."""

    title: str
    panels: tuple[Panel, ...]


def _spread(name: str, what: str, unit: str = "") -> tuple[Figure, ...]:
    return tuple(
        Figure(f"{name}/{which}", f"{word} {what}", unit)
        for which, word in (("mean", "Mean"), ("min", "Least"), ("max", "Greatest"))
    )


ROWS = (
    Row(
        "Reward",
        (
            Panel("Reward", _spread("critic/rewards", "reward of the samples of the step.")),
            Panel(
                "Parts of the reward",
                (Figure("critic/rewards/<part>/mean", "Mean of a named reward before it is weighted."),),
            ),
            Panel(
                "Advantage",
                _spread(
                    "critic/advantages",
                    "advantage: of samples, after scaling within their groups; with a critic of the tokens learned "
                    "from, whitened.",
                ),
            ),
            Panel(
                "Groups",
                (
                    Figure("groups/total", "Groups of the step.", "groups"),
                    Figure(
                        "groups/zero_variance",
                        "Groups whose rewards are equal. They are trained on only if the loss has a term besides the "
                        "advantage (KL, DPPO's pull, a critic). With a critic this counts those that are all at the "
                        "mean of the step.",
                        "groups",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Learning",
        (
            Panel(
                "Loss",
                (
                    Figure("actor/loss", "What is minimised: the loss of the policy and the weighted KL, per token."),
                    Figure("actor/pg_loss", "Loss of the policy per token, without KL."),
                ),
            ),
            Panel(
                "KL",
                (
                    Figure("actor/ppo_kl", "How far the policy has moved since it drew the tokens, per token.", "nats"),
                    Figure(
                        "actor/kl_loss", "KL to the initial model, per token, unweighted; with `algo.kl_coef`.", "nats"
                    ),
                ),
            ),
            Panel(
                "KL in the reward",
                (Figure("actor/reward_kl_penalty", "KL in the reward, per token; with `algo.kl_in_reward`.", "nats"),),
            ),
            Panel("Entropy", (Figure("actor/entropy", "How undecided the policy is, per token.", "nats"),)),
            Panel("Entropy bonus", (Figure("actor/entropy_coef", "Coefficient of the entropy bonus in this step."),)),
            Panel("Clipped", (Figure("actor/pg_clipfrac", "Share of tokens that were clipped.", "share"),)),
            Panel(
                "Distillation",
                (
                    Figure(
                        "distillation/reverse_kl",
                        "Reverse KL to the teacher per token: mean of log student - log teacher on sampled tokens.",
                        "nats",
                    ),
                ),
            ),
            Panel(
                "Samples without a teacher signal",
                (
                    Figure(
                        "distillation/teacher_errors",
                        "Samples left out of the step because the teacher could not score them.",
                        "samples",
                    ),
                ),
            ),
            Panel(
                "Hinted",
                (Figure("distillation/hinted", "Share of samples for which the teacher had a hint.", "share"),),
            ),
            Panel("Gradient", (Figure("actor/grad_norm", "Length of the gradient before it is cut."),)),
            Panel("Learning rate", (Figure("actor/lr", "Learning rate of the step."),)),
            Panel(
                "Tokens of probability zero",
                (
                    Figure(
                        "actor/zero_prob_tokens",
                        "Share of tokens whose behaviour log-prob is -inf; they are trained on with a ratio of 1.",
                        "share",
                    ),
                ),
            ),
            Panel(
                "Engine and trainer",
                (
                    Figure("actor/logp_gap", "Mean distance between the log-probs of trainer and engine.", "nats"),
                    Figure(
                        "actor/logprob_diff/mean",
                        "Mean distance of trainer and engine where they had the same weights: rounding, one hopes.",
                        "nats",
                    ),
                    Figure(
                        "actor/logprob_diff/max",
                        "Greatest distance of trainer and engine where they had the same weights.",
                        "nats",
                    ),
                ),
            ),
            Panel(
                "Corrections",
                (Figure("actor/correction/<name>", "Mean weight that an entry of `algo.corrections` gives tokens."),),
            ),
            Panel(
                "Second moment",
                (
                    Figure("actor/m2/before", "With M2PO: second moment of the log-ratios it counts."),
                    Figure(
                        "actor/m2/after", "With M2PO: second moment of those log-ratios after its masking or clipping."
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Critic",
        (
            Panel("Loss of the critic", (Figure("critic/vf_loss", "With a critic: its loss per token."),)),
            Panel(
                "Values and returns",
                (
                    Figure("critic/values/mean", "With a critic: what it expected before it learned from the tokens."),
                    Figure("critic/returns/mean", "With a critic: what it should have expected."),
                ),
            ),
            Panel(
                "Explained variance",
                (
                    Figure(
                        "critic/vf_explained_var",
                        "With a critic: how much of the variance of the returns its values explain, 1 all of it; not "
                        "there if the returns are all alike.",
                    ),
                ),
            ),
            Panel(
                "Clipped values",
                (Figure("critic/vf_clipfrac", "With a critic: share of tokens whose value was clipped.", "share"),),
            ),
            Panel("Gradient of the critic", (Figure("critic/grad_norm", "With a critic: length of its gradient."),)),
        ),
    ),
    Row(
        "Lengths",
        (
            Panel("Length of answers", _spread("response_length", "length of an answer.", "tokens")),
            Panel(
                "Cut off",
                (Figure("response_length/clip_ratio", "Share of answers cut off at `rollout.max_tokens`.", "share"),),
            ),
        ),
    ),
    Row(
        "Judge",
        (
            Panel(
                "Outcomes",
                (Figure("judge/outcome/<outcome>", "Share of an outcome among the samples judged.", "share"),),
                stacked=True,
            ),
            Panel(
                "Share that could not be judged",
                (Figure("judge/error_ratio", "Share of samples that could not be judged; they never train.", "share"),),
            ),
            Panel("Could not be judged", (Figure("judge/errors", "Samples that could not be judged.", "samples"),)),
        ),
    ),
    Row(
        "Timing",
        (
            Panel(
                "Where the time of a step goes",
                (
                    Figure("timing_s/attempt", "Generating and judging.", "s"),
                    Figure("timing_s/teacher", "Teacher log-probs, with `distillation`.", "s"),
                    Figure("timing_s/learn", "Gradients and optimizer steps.", "s"),
                    Figure("timing_s/publish", "Bringing new weights to the engine.", "s"),
                ),
                stacked=True,
            ),
            Panel("A whole step", (Figure("timing_s/step", "The whole step, without evaluation and saving.", "s"),)),
            Panel(
                "An evaluation",
                (
                    Figure("timing_s/eval", "The evaluation.", "s"),
                    Figure("timing_s/eval/<benchmark>", "Evaluation on one benchmark (eval.benchmarks).", "s"),
                ),
            ),
        ),
    ),
    Row(
        "Throughput",
        (
            Panel(
                "Tokens",
                (Figure("perf/tokens_per_s", "Tokens generated, over the time of the whole step.", "tokens/s"),),
            ),
            Panel("Weights sent", (Figure("weights/bytes", "What was written to send weights to vLLM.", "bytes"),)),
            Panel(
                "Engines sent all weights",
                (Figure("weights/whole", "How many engines were sent all weights, and no delta.", "engines"),),
            ),
        ),
    ),
    Row(
        "Evaluation",
        (
            Panel(
                "Held-out loss",
                (
                    Figure(
                        "val/loss", "With `algo.name=sft`: cross-entropy of held-out completions, per token.", "nats"
                    ),
                ),
            ),
            Panel(
                "Held-out accuracy",
                (
                    Figure("val/accuracy", "Share of held-out answers that are right, over all data sources.", "share"),
                    Figure(
                        "val/accuracy/<source>",
                        "Share of held-out answers of one data source, or of one benchmark, that are right.",
                        "share",
                    ),
                ),
            ),
            Panel(
                "Held-out reward",
                (
                    Figure("val/reward", "Mean reward of held-out answers, over all data sources."),
                    Figure(
                        "val/test_score/<source>",
                        "Mean reward of held-out answers of one data source, or of one benchmark.",
                    ),
                ),
            ),
            Panel(
                "Length of held-out answers",
                (Figure("val/response_length/mean", "Mean length of a held-out answer.", "tokens"),),
            ),
            Panel(
                "Held-out, not judged",
                (
                    Figure("val/judge_errors", "Held-out answers that could not be judged.", "samples"),
                    Figure(
                        "val/judge_errors/<benchmark>", "Answers to one benchmark that could not be judged.", "samples"
                    ),
                ),
            ),
        ),
    ),
)


def figures() -> Iterator[Figure]:
    """All of them, in order."""
    return (figure for row in ROWS for panel in row.panels for figure in panel.figures)


def per_role(figure: Figure) -> bool:
    """Whether each of ROLES has it for itself."""
    return figure.name.startswith(_OF_ROLES)


def find(name: str) -> Figure | None:
    """The figure, or the family, that a name of metrics.jsonl belongs to."""
    role, _, rest = name.partition("/")
    if role in ROLES:
        found = find(rest)
        return found if found is not None and per_role(found) else None
    # A name in full comes before the families it would fit as well.
    fitting = [figure for figure in figures() if _pattern(figure.name).fullmatch(name)]
    return min(fitting, key=lambda figure: figure.is_family, default=None)


def about(name: str) -> str:
    """A figure's help text."""
    found = find(name)
    if found is None:
        return f"{name} of metrics.jsonl."
    role = name.partition("/")[0]
    return f"{f'Of the {role}: ' if role in ROLES else ''}{found.meaning}{f' ({found.unit})' if found.unit else ''}"


def gauge_name(figure: str) -> str:
    """As Prometheus allows it: critic/rewards/mean -> dojang_critic_rewards_mean."""
    return f"dojang_{_plain(figure)}"


def gauge_pattern(figure: Figure) -> str:
    """A regular expression for its gauges: those of a whole family, and those of all roles."""
    parts = (".+" if part[:1] == "<" else _plain(part) for part in _parts(figure.name))
    roles = f"({'|'.join(f'{role}_' for role in ROLES)})?" if per_role(figure) else ""
    return f"dojang_{roles}{'_'.join(filter(None, parts))}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "_", name).strip("_")


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("".join(".+" if part[:1] == "<" else re.escape(part) for part in _parts(name)))


def _parts(name: str) -> list[str]:
    """What is in angle brackets, and what lies between."""
    return re.split(r"(<\w+>)", name)
