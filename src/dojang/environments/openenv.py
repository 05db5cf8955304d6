"""Environments of OpenEnv: servers elsewhere or started here, talked to by OpenEnv's client in another interpreter."""

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dojang.core.errors import ConfigError
from dojang.environments.base import Environment, Messages, Reply, Step, StepResult
from dojang.environments.multi_turn import EpisodeLimits
from dojang.environments.rollout_process import (
    START_S,
    RolloutFailed,
    RolloutProcess,
    rollout_processes,
    trial_process,
)
from dojang.environments.section import EnvironmentSection
from dojang.protocols import Task
from dojang.types import Problem

__all__ = ["ADAPTER", "OpenEnvConfig"]

ADAPTER = str(Path(__file__).parent / "openenv_sessions.py")
_PACKAGE = (
    "openenv",
    "install it into a virtual environment (python -m venv .venv-openenv && .venv-openenv/bin/pip install "
    "openenv==0.10.0) and set workflow.python=.venv-openenv/bin/python",
)
"""The package, and what to do without it."""
_NUMBERS = itertools.count()


class OpenEnvConfig(EnvironmentSection):
    """Environments of OpenEnv, by the address of a server or its application."""

    name: Literal["openenv"] = "openenv"
    urls: tuple[str, ...] = ()
    """Addresses of servers of the environment, such as [http://127.0.0.1:8000]."""
    app: str = ""
    """package.module:app, the environment's application, instead of urls: its servers are started here."""
    app_dir: str = ""
    """Folder with the package of `app`, if it is not installed."""
    servers: int = Field(default=1, ge=1, le=1024)
    """Number of servers of `app`."""
    sessions_per_server: int = Field(default=1, ge=1, le=10_000)
    """Largest number of sessions in a server; at most the application's max_concurrent_envs. Further episodes wait."""
    reset: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment's `reset`, besides the seed, which is the episode's number."""
    instructions: str = ""
    """Text before the first observation. Empty: for actions with several fields, their schema."""
    observation: str = ""
    """Field of observations that the model is shown. Empty: all of them, as JSON."""
    action: str = ""
    """Field of actions that takes the reply. Empty: the only required field, if it is text; else replies are JSON."""
    max_turns: int = Field(default=20, ge=1, le=10_000)
    """Largest number of steps in an episode; it ends with the rewards so far."""
    python: str = ""
    """Path to an interpreter with openenv (and for `app`, what the environment needs) installed, such as
    .venv-openenv/bin/python. Empty: dojang's interpreter."""

    @model_validator(mode="after")
    def _one_kind_of_server(self) -> Self:
        if bool(self.urls) == bool(self.app):
            raise ValueError("set one of workflow.urls and workflow.app: servers that run, or the application to start")
        if self.urls and (self.servers > 1 or self.app_dir):
            raise ValueError(
                "workflow.servers and workflow.app_dir are for workflow.app; workflow.urls has the servers"
            )
        return self

    @property
    def limits(self) -> EpisodeLimits:
        sessions = (len(self.urls) or self.servers) * self.sessions_per_server
        return EpisodeLimits(self.max_turns, self.timeout_s, sessions)

    def environment(self) -> Environment:
        return _OpenEnvEpisode(self)

    def options(self) -> str:
        """Returns the options of the process, as JSON."""
        names = ("urls", "app", "app_dir", "servers", "reset", "instructions", "observation", "action")
        return json.dumps({name: getattr(self, name) for name in names}, sort_keys=True)

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises ConfigError if a server does not answer, or the problems have no seeds."""
        if not all(isinstance(each.columns.get("seed"), int) for each in problems):
            raise ConfigError("workflow.name=openenv makes its own instances; set data.name=episodes")
        where = f"workflow.app={self.app}" if self.app else f"workflow.urls=[{', '.join(self.urls)}]"
        failure = f"{where}: the environment cannot be used"
        with trial_process(self.python or sys.executable, ADAPTER, self.options(), failure, _PACKAGE) as process:
            process.ask("reset", timeout_s=self.timeout_s, session=0, seed=0).result(START_S)
            process.ask("close", timeout_s=self.timeout_s, session=0).result(START_S)


class _OpenEnvEpisode(Environment):
    """One session."""

    def __init__(self, config: OpenEnvConfig) -> None:
        self._timeout_s = 0.9 * config.timeout_s
        self._processes = rollout_processes(config.python or sys.executable, ADAPTER, config.options())
        self._session = next(_NUMBERS)
        self._process: RolloutProcess | None = None

    async def reset(self, problem: Problem) -> Messages:
        self._process = self._processes.get()
        found = await self._call("reset", seed=problem.columns.get("seed"))
        return str(found["text"])

    async def step(self, reply: Reply) -> StepResult:
        found = await self._call("step", text=reply.text)
        done = bool(found["done"])
        return Step("" if done else str(found["text"]), float(found["reward"]), done, detail=str(found["text"])[:200])

    async def close(self) -> None:  # type: ignore[override]
        if self._process is not None and self._process.alive:
            await self._call("close")

    async def _call(self, action: str, **fields: object) -> Mapping[str, Any]:
        assert self._process is not None
        try:
            return await self._process.call(action, self._timeout_s, session=self._session, **fields)
        except RolloutFailed as error:
            if error.kind != "timeout":
                raise
            raise RolloutFailed(f"{action} took longer than {self._timeout_s:g} s (0.9 workflow.timeout_s)") from error
