"""A custom algorithm: advantages and loss from the user's code."""

from typing import Any, Literal

from pydantic import Field

from dojang.algos.section import PlainAlgorithmSection
from dojang.core.errors import ConfigError
from dojang.core.in_process import ObjectName
from dojang.core.section import make_object
from dojang.protocols import Algorithm, LimitsRatios, Requirements, TrainsCritic

__all__ = ["CustomAlgorithmConfig"]


class CustomAlgorithmConfig(PlainAlgorithmSection):
    """An algorithm from your own class."""

    name: Literal["custom"] = "custom"
    make_with: ObjectName
    """package.module:Class, called with the options; implements dojang.protocols.Algorithm."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""

    def make(self, max_tokens: int) -> Algorithm:
        """Makes the user's algorithm; `max_tokens` is not passed on."""
        algorithm: Algorithm = make_object(self.make_with, "algo.make_with", **self.options)
        needs = getattr(algorithm, "requirements", None) or Requirements()
        kinds = [Algorithm, *([LimitsRatios] if needs.limit else []), *([TrainsCritic] if needs.critic else [])]
        wanted = [name for kind in kinds for name in vars(kind) if not name.startswith("_")]
        if missing := [name for name in wanted if not hasattr(algorithm, name)]:
            raise ConfigError(
                f"algo.make_with={self.make_with!r}: {type(algorithm).__name__} has no {', '.join(missing)}; "
                "see dojang.protocols.Algorithm for what each returns"
            )
        return algorithm
