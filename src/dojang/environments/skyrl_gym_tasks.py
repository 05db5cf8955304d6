"""Adapter of SkyRL-Gym's environments (remote_server.py). Imports the standard library and skyrl_gym only."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Episode"]


class Episode:
    """One episode. SkyRL-Gym's environments get the reference of a problem as `reward_spec.ground_truth`."""

    def __init__(self, options: dict[str, Any], problem: dict[str, Any]) -> None:
        gym = importlib.import_module("skyrl_gym")
        self._messages = problem["messages"]
        truth = problem["reference"]  # its rules compare text: a number would never be right
        extras = {
            "reward_spec": {"method": "rule", "ground_truth": truth if isinstance(truth, dict | list) else str(truth)},
            "max_turns": options["max_turns"],
            "extra_info": {},
            **options["extras"],
        }
        config = importlib.import_module("omegaconf").OmegaConf.create(options["env_config"])
        self._env = gym.make(options["env"], env_config=config, extras=extras)

    def reset(self) -> list[dict[str, str]]:
        """Starts the episode; returns its first messages."""
        messages, _ = self._env.init(self._messages)
        return [_message(each) for each in messages]

    def step(self, text: str) -> dict[str, Any]:
        """Hands a reply to the environment."""
        found = self._env.step(text)
        messages = [_message(each) for each in found["observations"]]
        reward, done = float(found["reward"]), bool(found["done"])
        return {"messages": messages, "reward": reward, "done": done or not messages}

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


def _message(found: dict[str, Any]) -> dict[str, str]:
    return {"role": str(found["role"]), "content": str(found["content"])}
