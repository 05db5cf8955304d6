"""Credit and loss by the user's own code."""

from typing import Any, Literal

from pydantic import Field

from dojang.core.errors import ConfigError
from dojang.core.section import Section, make_object
from dojang.protocols import Algorithm

__all__ = ["CustomAlgorithmConfig"]

_CRITICS = ("needs_critic", "trace", "value_loss")
"""What only an algorithm with a critic must have."""


class CustomAlgorithmConfig(Section):
    """The escape hatch of the algorithm room."""

    name: Literal["custom"] = "custom"
    make_with: str
    """package.module:Class, called with the options; has the methods of Algorithm."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for it."""

    def make(self, longest: int) -> Algorithm:
        """The user's algorithm; how long answers may be is its own business."""
        algorithm: Algorithm = make_object(self.make_with, "algo.make_with", **self.options)
        wanted = [name for name in vars(Algorithm) if not name.startswith("_")]
        if not getattr(algorithm, "needs_critic", False):
            wanted = [name for name in wanted if name not in _CRITICS]
        if missing := [name for name in wanted if not hasattr(algorithm, name)]:
            raise ConfigError(
                f"algo.make_with={self.make_with!r}: {type(algorithm).__name__} has no {', '.join(missing)}; "
                "dojang.protocols.Algorithm says what each is for"
            )
        return algorithm
