"""Base class of algorithms without policy-gradient settings, which other sections ask about."""

from collections.abc import Mapping
from typing import Any, ClassVar

from dojang.core.section import Section

__all__ = ["PlainAlgorithmSection"]


class PlainAlgorithmSection(Section):
    """An algorithm that computes its own advantages and loss: settings of PolicyGradientConfig are off."""

    advantage: ClassVar[str] = ""
    needs_group: ClassVar[bool] = False
    kl_coef: ClassVar[float] = 0.0
    kl_in_reward: ClassVar[float] = 0.0
    old_logprobs: ClassVar[str] = "behaviour"
    corrections: ClassVar[tuple[()]] = ()
    reward_weights: ClassVar[Mapping[str, Any]] = {}
