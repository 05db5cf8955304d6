"""The entropy bonus as the trainer sees it: a coefficient that follows the entropy of each optimizer step."""

from typing import Protocol

__all__ = ["EntropyController"]


class EntropyController(Protocol):
    """The coefficient of an entropy bonus. An Algorithm may have one, as `entropy_bonus`."""

    @property
    def coef(self) -> float:
        """Coefficient of the next optimizer step."""

    def update(self, entropy: float) -> None:
        """Take in the mean entropy of an optimizer step."""

    def state(self) -> dict[str, float]:
        """For a checkpoint."""

    def restore(self, state: dict[str, float]) -> None:
        """Continue from what `state` returned."""
