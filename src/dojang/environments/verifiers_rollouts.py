"""Adapter of verifiers' environments (rollout_server.py). Imports the standard library and verifiers only.

A task, a harness and a runtime become an episode of verifiers' `Env`; every request of the harness goes to the policy's
server, with the key of the rollout's session as the name of the model.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

__all__ = ["PACKAGE", "Rollouts"]

PACKAGE = "verifiers"


class Rollouts:
    """One environment. Options: `env`, verifiers' configuration of it, and `max_turns`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._vf: Any = importlib.import_module("verifiers.v1")
        self._env = self._vf.load_environment(self._config(options["env"], options["max_turns"]))
        self._task_type = type(self._env.taskset).task_type()
        self._stack = contextlib.AsyncExitStack()

    def _config(self, env: dict[str, Any], max_turns: int) -> Any:
        """Validates the configuration, with defaults that need no cloud: the chat loop `null`, in subprocesses."""
        vf = self._vf
        taskset = env.get("taskset") or {}
        kind = vf.env_config_type(taskset.get("id") or "", env.get("id") or "")
        agents = [name for name, each in kind.model_fields.items() if isinstance(each.default, vf.AgentConfig)]
        settings = {**env, "retries": {"max_retries": 0}}  # a failure is counted, and its tokens are not trained on
        for name in agents:
            own = dict(env.get(name) or {})
            own.setdefault("runtime", {"type": "subprocess"})
            if vf.default_harness_id(taskset.get("id") or "") == "bash":  # the taskset brings none
                own.setdefault("harness", {"id": "null"})
            own.setdefault("max_turns", max_turns)
            settings[name] = {**own, "retries": {"max_retries": 0}}
        config = vf.resolve_env_config(settings)
        self._agents = [name for name in agents if getattr(config, name).client is None]
        if len(self._agents) != 1:
            raise ValueError(
                f"the agents {', '.join(self._agents)} would all be the policy; give all but one a model and client of "
                "their own (workflow.env.NAME.client)"
                if self._agents
                else "no agent of this environment uses the policy: all have a client of their own"
            )
        return config

    async def start(self) -> None:
        """Starts what all rollouts share: tools of the taskset, and the server between harness and policy."""
        await self._stack.enter_async_context(self._env.serving())

    async def check(self, task: dict[str, Any]) -> dict[str, Any]:
        """Validates the data of a task."""
        self._task(task)
        return {}

    async def run(self, task: dict[str, Any], base_url: str, model: str) -> dict[str, Any]:
        """Plays an episode; returns its reward. Raises if anything failed, of the environment or of the harness."""
        vf = self._vf
        client = vf.EvalClientConfig(base_url=base_url, api_key_var="DOJANG_UNUSED_API_KEY")
        context = vf.ModelContext(model=model, client=client, sampling=vf.Sampling())
        (slot,) = self._env.slots(self._task(task))
        episode = await self._env.run_slot(slot, context)
        traces = [each for each in episode.traces if each.agent.name in self._agents]
        failures = [each for trace in traces for each in trace.errors] + list(episode.errors)
        if not episode.ok or failures:
            raise RuntimeError("; ".join(f"{each.type}: {each.message}" for each in failures[-2:]) or "it failed")
        if len(traces) != 1:
            raise RuntimeError(f"{self._agents[0]} played {len(traces)} times; one reward per rollout is needed")
        rewards = traces[0].rewards
        if missing := [name for name, each in rewards.items() if each is None]:
            raise RuntimeError(f"rewards were not computed: {', '.join(missing)}")
        if not rewards:
            raise RuntimeError("the task gave no reward")
        metrics = {name: value for name, value in traces[0].metrics.items() if value is not None}
        return {
            "reward": float(traces[0].reward),
            "parts": {**metrics, **{name: float(each.value) for name, each in rewards.items()}},
            "detail": str(traces[0].stop_condition or ""),
        }

    def _task(self, data: dict[str, Any]) -> Any:
        kind = self._task_type
        return kind(kind.data_type().model_validate(data), self._env.config.taskset.task)
