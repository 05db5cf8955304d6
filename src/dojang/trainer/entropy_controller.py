"""Protocol of the entropy bonus: a coefficient that adapts to the entropy of each optimizer step."""

from typing import Protocol

__all__ = ["EntropyController"]


class EntropyController(Protocol):
    """Entropy coefficient. An Algorithm may have one, as `entropy_bonus`."""

    @property
    def coef(self) -> float:
        """Coefficient of the next optimizer step."""

    def update(self, entropy: float) -> None:
        """Adapts the coefficient to the mean entropy of an optimizer step."""

    def state(self) -> dict[str, float]:
        """Returns the state for a checkpoint."""

    def restore(self, state: dict[str, float]) -> None:
        """Restores what `state` returned."""
