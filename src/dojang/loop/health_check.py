"""The reward-health gate: stops a run whose rewards cannot teach, and says why.

Equal rewards carry no signal, but there are two ways to get them: nothing works, or everything does. Only the
first is a reason to stop.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dojang.core.errors import HealthError
from dojang.loop.config import HealthConfig
from dojang.types import Group, Outcome

__all__ = ["HealthGate", "has_signal"]


def has_signal(group: Group) -> bool:
    """Whether rewards of the same role and turn differ in a group, or a sample has an advantage anyway."""
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
    """What the judge last said it could not do."""

    @property
    def hopeless(self) -> bool:
        return self.mixed == 0 and self.accepted < self.judged


class HealthGate:
    """Remembers the last few steps; part of a checkpoint, so a resumed run remembers them too."""

    def __init__(self, config: HealthConfig, *, needs_signal: bool = True) -> None:
        """`needs_signal` unless something else than rewards teaches (distillation)."""
        self._config, self._needs_signal = config, needs_signal
        self._steps: deque[_StepHealth] = deque(maxlen=config.patience_steps)

    def check(self, groups: Sequence[Group]) -> None:
        """Take note of a step; raise HealthError if the window shows no way to learn."""
        self._steps.append(_examine(groups))
        if len(self._steps) >= min(3, self._config.patience_steps):  # a broken judge need not be watched for long
            self._check_judge()
        if self._needs_signal and len(self._steps) == self._config.patience_steps:
            self._check_signal()

    def state(self) -> list[dict[str, Any]]:
        """For the checkpoint."""
        return [asdict(step) for step in self._steps]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """From the checkpoint."""
        self._steps.extend(_StepHealth(**step) for step in state)

    def _check_judge(self) -> None:
        unjudged = sum(step.unjudged for step in self._steps)
        total = unjudged + sum(step.judged for step in self._steps)
        if unjudged > self._config.max_judge_errors * total:
            complaint = next(step.complaint for step in reversed(self._steps) if step.complaint)
            raise HealthError(
                f"{unjudged} of {total} samples in the last {len(self._steps)} steps could not be judged, so "
                f"their rewards are unknown. The last failure was: {complaint}. Mend the judge, then continue "
                "with --resume"
            )

    def _check_signal(self) -> None:
        if not all(step.hopeless for step in self._steps):
            return
        low = min(step.lowest for step in self._steps)
        high = max(step.highest for step in self._steps)
        seen = f"all {low:g}" if low == high else f"from {low:g} to {high:g}, but equal within each group"
        raise HealthError(
            f"in the last {len(self._steps)} steps no group had rewards that differ (they were {seen}), so "
            "there was nothing to learn from. Look at what the model writes in rollouts/*.parquet first; then "
            "resume with more rollout.group_size, a higher rollout.temperature or longer rollout.max_tokens, or start "
            "again with easier problems"
        )


def _examine(groups: Sequence[Group]) -> _StepHealth:
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
    )
