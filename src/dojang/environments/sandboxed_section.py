"""Base class of `workflow` sections of environments with a sandbox per episode."""

from pydantic import Field

from dojang.environments.multi_turn import EpisodeLimits
from dojang.environments.section import EnvironmentSection

__all__ = ["SandboxedSection"]


class SandboxedSection(EnvironmentSection):
    """Settings of an environment with a sandbox per episode, which takes memory and one of the judge's user ids."""

    # The sandbox has limits of time for what runs in it. Sandboxes of a whole batch may start at once, on few cores.
    timeout_s: float = Field(default=1200.0, gt=0, le=86_400)
    max_concurrent: int = Field(default=200, ge=1, le=400)
    """Largest number of episodes at a time; the others wait."""

    @property
    def limits(self) -> EpisodeLimits:
        return EpisodeLimits(self.max_turns, self.timeout_s, self.max_concurrent)
