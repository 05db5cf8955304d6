"""Adapter of TextArena's games for one player (remote_server.py). Imports the standard library and textarena only.

The conversation has what the game says: first its rules and the board, then after each move what changed. Moves are
written in square brackets; a reply without any is one move.

Held-out instances are other instances than those of training: the hash of an instance, not its seed, decides to which
it belongs. Games that have one instance only, or make it during the first move, are played as they are.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import re
from typing import Any

__all__ = ["Episode"]

_THINKING = re.compile(r"\A.*?</think>", re.DOTALL)
_PARTS = 8
"""Reciprocal of the fraction of instances that are held out."""
_ATTEMPTS = 500


class Episode:
    """One game."""

    def __init__(self, options: dict[str, Any], problem: dict[str, Any]) -> None:
        self._game: str = options["game"]
        self._settings: dict[str, Any] = options.get("settings", {})
        self._seed: int = problem["seed"]
        self._held_out: bool = problem["held_out"]
        self._env: Any = None

    def reset(self) -> str:
        """Starts the game; returns its rules and the board."""
        self._env = self._draw()
        return self._said()

    def step(self, text: str) -> dict[str, Any]:
        """Makes a move."""
        move = _THINKING.sub("", text).strip()
        done, _ = self._env.step(move if "[" in move else f"[{move}]")
        if not done:
            return {"messages": self._said() or "Go on.", "reward": 0.0, "done": False}
        rewards, info = self._env.close()
        reward = float((rewards or {}).get(0, 0.0))
        return {"done": True, "reward": reward, "solved": reward >= 1, "detail": str(info[0].get("reason") or "")}

    def close(self) -> None:
        """Nothing is open."""

    def _draw(self) -> Any:
        """Draws instances until one belongs to the wanted split."""
        made = importlib.import_module("textarena")
        seen = set()
        for attempt in range(_ATTEMPTS):
            env = made.make(f"{self._game}-raw", **self._settings)
            env.reset(num_players=1, seed=self._seed + attempt * 2**32)
            mark = hashlib.sha256(repr(env.state.game_state).encode()).digest()[0] % _PARTS
            seen.add(repr(env.state.game_state))
            if (mark == 0) == self._held_out or (attempt == 49 and len(seen) == 1):
                random.seed(f"{self._seed} {attempt}")  # moves of equal instances need not have equal luck
                return env
        raise ValueError(
            f"{self._game} has {len(seen)} instances, none of them {'held out' if self._held_out else 'for training'}"
        )

    def _said(self) -> str:
        """Returns the messages of the game since the last move, without the move itself."""
        _, observed = self._env.get_observation()
        kinds = [(getattr(kind, "name", ""), message) for _, message, kind in observed]
        return "\n".join(message.strip() for kind, message in kinds if kind != "PLAYER_ACTION").strip()
