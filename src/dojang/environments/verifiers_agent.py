"""Plays rollouts of verifiers' environments as agents (agent_workflow.py)."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dojang.environments.calls import EnvironmentFailed
from dojang.environments.policy_server.requests import RequestRefused
from dojang.environments.policy_server.reward import read_reward
from dojang.environments.rollout_process import RolloutFailed, rollout_processes
from dojang.types import Problem

if TYPE_CHECKING:
    from dojang.environments.agent_workflow import AgentClient
    from dojang.environments.verifiers import VerifiersConfig

__all__ = ["run_episode"]


def run_episode(config: "VerifiersConfig") -> Callable[[Problem, "AgentClient"], Awaitable[object]]:
    """Returns the agent: it plays one episode in verifiers' process, and returns its reward."""
    from dojang.environments.verifiers import ADAPTER

    async def run(problem: Problem, client: "AgentClient") -> object:
        python, options = config.settings_of(problem)
        try:
            # The key is the name of the model: verifiers keeps a pool of connections for every other address or key.
            found = (
                await rollout_processes(python, ADAPTER, options)
                .get()
                .call(
                    "run",
                    config.timeout_s,
                    task=config.task_of(problem),
                    base_url=client.base_url,
                    model=client.api_key,
                )
            )
            return read_reward(found)
        except RolloutFailed as error:
            if error.kind == "timeout":
                raise EnvironmentFailed(f"longer than workflow.timeout_s={config.timeout_s:g}: {error}") from error
            raise EnvironmentFailed(str(error)) from error
        except RequestRefused as error:
            raise EnvironmentFailed(f"verifiers' reward: {error.message}") from error

    return run
