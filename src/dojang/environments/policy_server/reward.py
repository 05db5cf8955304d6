"""Reads a reward: {"reward": 1.0, "solved": true, "parts": {"style": 0.5}, "detail": "...", "training_trace": {}}."""

from collections.abc import Mapping
from typing import Any

from dojang.environments.base import Step
from dojang.environments.policy_server.fields import Body, invalid, read_number, read_text
from dojang.environments.policy_server.training_trace import check_trace

__all__ = ["read_reward"]

_MOST = 1e30
_KNOWN = ("reward", "solved", "parts", "detail", "training_trace")


def read_reward(body: Body) -> Step:
    """Returns the result of an episode. Raises RequestRefused unless the reward and its parts are finite numbers."""
    if unknown := sorted(body.keys() - {*_KNOWN}):
        raise invalid(f"unknown fields: {', '.join(unknown)}; known: {', '.join(_KNOWN)}", unknown[0])
    reward, solved, parts = read_number(body, "reward", -_MOST, _MOST), body.get("solved"), body.get("parts")
    if reward is None:
        raise invalid("reward is missing", "reward", "missing_field")
    if solved is not None and not isinstance(solved, bool):
        raise invalid(f"solved={solved!r:.80} must be true or false", "solved")
    return Step(
        reward=reward,
        done=True,
        solved=solved,
        parts=_parts(parts),
        detail=read_text(body, "detail", ""),
        training_trace=check_trace(body.get("training_trace")),
    )


def _parts(parts: Any) -> dict[str, float]:
    if parts is None:
        return {}
    if not isinstance(parts, Mapping):
        raise invalid(f"parts={parts!r:.80} must be an object of numbers", "parts")
    found = {name: read_number(parts, name, -_MOST, _MOST) for name in parts}
    return {name: value for name, value in found.items() if value is not None}
