"""Training health check: stops a run whose rewards carry no signal, and reports why. Warns of completions that are
cut at the token limit or run on after their answer.

Equal rewards carry no signal. They come from groups that are all wrong or all right; only the first is a reason to
stop.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dojang.core.errors import HealthError
from dojang.loop.config import HealthConfig
from dojang.loop.endings import Endings
from dojang.types import Group, Outcome

__all__ = ["MANY_CUT", "MANY_RUN_ON", "HealthCheck", "has_signal"]

logger = logging.getLogger(__name__)

MANY_CUT = 0.25
"""Share of completions cut before they had an answer above which the run warns."""
MANY_RUN_ON = 0.1
"""Share of completions cut after their answer above which the run warns: each of them is a waste."""


def has_signal(group: Group) -> bool:
    """Whether rewards of the same role and turn differ within a group, or a sample has a non-zero advantage."""
    turns = {(each.role, each.turn) for each in group.samples}
    rewards = {(each.role, each.turn, each.reward) for each in group.samples}
    return len(rewards) > len(turns) or group.has_advantage


@dataclass(frozen=True, slots=True)
class _StepHealth:
    judged: int
    unjudged: int
    mixed: int
    """Groups whose rewards differ."""
    accepted: int
    lowest: float
    highest: float
    complaint: str
    """Last error of the judge."""
    samples: int = 0
    """Completions of the main policy; the next two are parts of them."""
    cut: int = 0
    """Truncated at max_tokens before they had an answer."""
    run_on: int = 0
    """Truncated at max_tokens after their answer."""

    @property
    def hopeless(self) -> bool:
        return self.mixed == 0 and self.accepted < self.judged


class HealthCheck:
    """Checks the last `patience_steps` steps; they are saved in checkpoints, so a resumed run checks them too."""

    def __init__(self, config: HealthConfig, *, needs_signal: bool = True) -> None:
        """`needs_signal` is False where the run trains on more than rewards (distillation)."""
        self._config, self._needs_signal = config, needs_signal
        self._steps: deque[_StepHealth] = deque(maxlen=config.patience_steps)
        self._warned: set[str] = set()
        """Warnings logged; each is logged once."""

    def check(self, groups: Sequence[Group], endings: Endings | None = None) -> None:
        """Adds a step; raises HealthError if the judge keeps failing or the rewards carry no signal. `endings` says how
        its completions ended."""
        self._steps.append(_step_health(groups, endings or Endings()))
        if len(self._steps) >= min(3, self._config.patience_steps):  # a broken judge is reported early
            self._check_judge()
            self._check_endings()
        if self._needs_signal and len(self._steps) == self._config.patience_steps:
            self._check_signal()

    def state(self) -> list[dict[str, Any]]:
        """Returns the steps for a checkpoint."""
        return [asdict(step) for step in self._steps]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restores the steps from a checkpoint."""
        self._steps.extend(_StepHealth(**step) for step in state)

    def _check_judge(self) -> None:
        unjudged = sum(step.unjudged for step in self._steps)
        total = unjudged + sum(step.judged for step in self._steps)
        if unjudged > self._config.max_judge_errors * total:
            complaint = next(step.complaint for step in reversed(self._steps) if step.complaint)
            raise HealthError(
                f"{unjudged} of {total} samples in the last {len(self._steps)} steps could not be judged, so "
                f"their rewards are unknown. The last failure was: {complaint}. Fix the judge, the reward "
                "function or the environment that it names, then continue with `dojang resume`"
            )

    def _check_endings(self) -> None:
        """Warns, once each, of completions that run on after their answer or are cut before they have one."""
        total = max(1, sum(step.samples for step in self._steps))
        run_on = sum(step.run_on for step in self._steps) / total
        cut = sum(step.cut for step in self._steps) / total
        if run_on > MANY_RUN_ON and "run on" not in self._warned:
            self._warned.add("run on")
            logger.warning(
                "%.0f%% of the completions of the last %d steps ran on after their answer until they were cut at "
                "rollout.max_tokens. They cost time, and no reward depends on where they end. Let them stop: set "
                "task.stop_at to another value than never, or data.stop to a text that follows the answers; or reward "
                "completions that end with their answer (docs/rewards.md). Watch response/cut_after_answer",
                100 * run_on,
                len(self._steps),
            )
        if cut > MANY_CUT and "cut" not in self._warned:
            self._warned.add("cut")
            logger.warning(
                "%.0f%% of the completions of the last %d steps were cut at rollout.max_tokens before they had an "
                "answer. Raise rollout.max_tokens, or ask for shorter answers in the prompt; "
                "train.mask_truncated_completions=true leaves them out of the loss. Watch response_length/clip_ratio",
                100 * cut,
                len(self._steps),
            )

    def _check_signal(self) -> None:
        if not all(step.hopeless for step in self._steps):
            return
        low = min(step.lowest for step in self._steps)
        high = max(step.highest for step in self._steps)
        seen = f"all {low:g}" if low == high else f"from {low:g} to {high:g}, but equal within each group"
        raise HealthError(
            f"in the last {len(self._steps)} steps no group had rewards that differ (they were {seen}), so "
            "all advantages were zero and the policy did not change. Read the completions in rollouts/*.parquet first; "
            "then resume with a larger rollout.group_size, a higher rollout.temperature or rollout.max_tokens, or "
            "start again with easier problems"
        )


def _step_health(groups: Sequence[Group], endings: Endings) -> _StepHealth:
    samples = [sample for group in groups for sample in group.samples]
    errors = [error for group in groups for error in group.judge_errors]
    rewards = [sample.reward for sample in samples] or [0.0]
    return _StepHealth(
        judged=len(samples),
        unjudged=len(errors),
        mixed=sum(has_signal(group) for group in groups),
        accepted=sum(sample.verdict.outcome is Outcome.ACCEPTED for sample in samples),
        lowest=min(rewards),
        highest=max(rewards),
        complaint=errors[-1] if errors else "",
        samples=endings.samples,
        cut=endings.cut - endings.cut_after_answer,
        run_on=endings.cut_after_answer,
    )
