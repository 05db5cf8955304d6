"""Agent workflow: runs `group_size` agents per problem, each with a separate session on a server in this process.

What the agents ask is sampled and recorded by their sessions (policy_server/session.py), so an agent written with any
client library is a rollout. An agent that raises, takes too long or gives no reward is a failure: its sample is
recorded, counted as a judge error, and never trained on.
"""

import asyncio
import inspect
import reprlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

from dojang.core.safe_text import replace_surrogates
from dojang.core.section import load_object
from dojang.environments.agent import AgentConfig
from dojang.environments.agent_process import run_program
from dojang.environments.base import Step
from dojang.environments.calls import EnvironmentFailed, call_with_limit
from dojang.environments.episode import Episode
from dojang.environments.policy_server.requests import RequestRefused
from dojang.environments.policy_server.routes import make_app
from dojang.environments.policy_server.server import LocalServer
from dojang.environments.policy_server.session import Session, SessionRules
from dojang.environments.policy_server.sessions import RunSessions
from dojang.environments.results import as_step
from dojang.protocols import Task
from dojang.types import Group, Problem, Sample
from dojang.workflows.batched_turns import TurnBarrier
from dojang.workflows.grade_with_retries import grade_with_retries, make_group
from dojang.workflows.section import RolloutPolicy

__all__ = ["MODEL", "AgentClient", "AgentWorkflow", "RunAgent", "agent_of"]

MODEL = "policy"
"""Name of the model in the API."""


@dataclass(frozen=True, slots=True)
class AgentClient:
    """Access of one agent to the policy: `openai.OpenAI(base_url=client.base_url, api_key=client.api_key)`."""

    base_url: str
    """URL of OpenAI's API, up to and including /v1. Anthropic's client takes `server_url`."""
    api_key: str
    """Key of this agent's session."""
    model: str = MODEL

    @property
    def server_url(self) -> str:
        return self.base_url.removesuffix("/v1")

    @property
    def reward_url(self) -> str:
        """URL to post the reward to: {"reward": 1.0}."""
        return f"{self.base_url}/sessions/{self.api_key}/reward"


RunAgent: TypeAlias = Callable[[Problem, AgentClient], Awaitable[object]]
"""Runs one agent; returns a Step, an answer that the task grades, a number, or None if it posted its reward."""


class AgentLimits(Protocol):
    """Settings that all sections of agents have."""

    @property
    def max_turns(self) -> int: ...
    @property
    def max_concurrent(self) -> int: ...
    @property
    def client_sampling(self) -> Literal["refuse", "ignore"]: ...


class AgentWorkflow:
    """The agent Workflow."""

    def __init__(
        self,
        config: AgentLimits,
        run_agent: RunAgent,
        task: Task,
        policy: RolloutPolicy,
        *,
        group_size: int,
        lockstep: bool,
    ) -> None:
        self._run_agent, self._task, self._policy, self._group_size = run_agent, task, policy, group_size
        self._rules = SessionRules(config.max_turns, config.client_sampling)
        self._barrier = TurnBarrier() if lockstep else None
        self._slots = asyncio.Semaphore(config.max_concurrent)
        self._sessions = RunSessions()
        self._server = LocalServer(lambda: make_app(self._sessions, MODEL))

    async def run(self, problem: Problem, prompt_index: int) -> Group:
        async with self._server.running() as url:
            played = await asyncio.gather(
                *(self._play(problem, prompt_index, index, url) for index in range(self._group_size))
            )
        return make_group(problem, prompt_index, [sample for samples in played for sample in samples])

    async def _play(self, problem: Problem, prompt_index: int, index: int, url: str) -> list[Sample]:
        """Runs one agent. The next one starts before this one leaves the barrier: which agents are answered together
        must not depend on time."""
        await self._slots.acquire()
        with nullcontext() if self._barrier is None else self._barrier.active():
            try:
                place = prompt_index * self._group_size + index
                session = Session(self._policy, self._rules, place=place, barrier=self._barrier)
                episode = Episode(index, session.temperature)
                with self._sessions.open(session) as key:
                    await self._episode(problem, session, AgentClient(f"{url}/v1", key), episode)
            finally:
                self._slots.release()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        return episode.samples()

    async def _episode(self, problem: Problem, session: Session, client: AgentClient, episode: Episode) -> None:
        failure, limit, step, streams = "", "", Step(), None
        try:
            try:
                found = await self._run_agent(problem, client)
            finally:
                session.end("its agent has ended")  # a thread that it left behind may still ask
            step = await self._result(problem, session, found)
            streams = session.trained_streams(step)
        except EnvironmentFailed as error:
            failure, limit = str(error), session.limit
        except RequestRefused as error:
            failure = error.message
        if session.failure is not None:
            raise session.failure
        if session.ignored:
            episode.note("ignored " + ", ".join(f"{key}={value:g}" for key, value in session.ignored.items()))
        episode.add_streams(session.streams if streams is None else streams)
        if not session.streams:
            episode.fail(f"{problem.id}: {failure or 'the agent has sent no request to the policy'}")
        elif not failure:
            episode.add_step(step)
        elif limit:  # the policy's doing: it used up its context or its turns
            episode.stop(f"{limit}; then {failure}", None, finish="length")
        else:
            episode.fail(f"{problem.id}: {failure}")

    async def _result(self, problem: Problem, session: Session, found: object) -> Step:
        """Returns the result of an agent. Raises EnvironmentFailed if there is none."""
        if found is None:
            if session.result is None:
                raise EnvironmentFailed("the agent returned None and posted no reward")
            return session.result
        if isinstance(found, str):
            found = await grade_with_retries(self._task, problem, replace_surrogates(found))
        step = as_step(found, "the agent")
        if not step.done and step.messages:
            raise EnvironmentFailed(
                f"the agent returned {reprlib.repr(found)}, which is neither a reward nor an answer"
            )
        return step


def agent_of(config: AgentConfig) -> RunAgent:
    """Returns the agent of a section: its function, or its program."""
    if config.command:
        return partial(run_program, config)
    return _function(load_object(str(config.make_with), "workflow.make_with"), config.options, config.timeout_s)


def _function(agent: Callable[..., Any], options: Mapping[str, Any], timeout_s: float) -> RunAgent:
    async def run(problem: Problem, client: AgentClient) -> object:
        return await call_with_limit(called, problem, client, timeout_s=timeout_s)

    if inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(getattr(agent, "__call__", None)):  # noqa: B004

        async def called(problem: Problem, client: AgentClient) -> object:
            return await agent(problem, client, **options)
    else:

        def called(problem: Problem, client: AgentClient) -> object:  # type: ignore[misc]
            return agent(problem, client, **options)

    called.__qualname__ = getattr(agent, "__qualname__", repr(agent))
    return run
