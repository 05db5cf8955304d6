"""Multi-turn workflow: plays `group_size` episodes of an environment per problem.

Every reply extends the token stream of its episode (episode.py). All episodes of a batch take their turns together
(workflows/batched_turns.py), so that a run repeats and resumes with the same tokens; in `stream`, or with
`workflow.lockstep=false`, each goes on as soon as its environment has answered.
"""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

from dojang.environments.base import Environment, Reply, Step
from dojang.environments.calls import EnvironmentFailed, call_with_limit
from dojang.environments.episode import Episode
from dojang.environments.episode_start import start_episode
from dojang.environments.results import as_messages, as_step, as_verdict
from dojang.protocols import Renderer, Task
from dojang.types import Finish, Group, Problem, Sample, Verdict
from dojang.workflows.batched_turns import TurnBarrier
from dojang.workflows.grade_with_retries import make_group
from dojang.workflows.section import RolloutPolicy

__all__ = ["EpisodeLimits", "MultiTurn"]

_TURN_STREAM = 2**35
"""Distance between the seeds of two turns, so that each turn of an episode has its own random numbers."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of an episode."""

    max_turns: int
    timeout_s: float
    """Longest time of a call of `reset` or `step`."""
    max_concurrent: int | None = None
    """Largest number of episodes at a time."""


class MultiTurn:
    """The multi-turn Workflow."""

    def __init__(
        self,
        make: Callable[[], Environment],
        task: Task,
        policy: RolloutPolicy,
        limits: EpisodeLimits,
        *,
        group_size: int,
        lockstep: bool,
    ) -> None:
        """`make` creates the environment of an episode. `lockstep`: episodes take their turns together."""
        self._make = make
        self._task = task
        self._policy = policy
        self._limits = limits
        self._group_size = group_size
        self._barrier = TurnBarrier() if lockstep else None
        self._slots = None if limits.max_concurrent is None else asyncio.Semaphore(limits.max_concurrent)

    async def run(self, problem: Problem, prompt_index: int) -> Group:
        played = await asyncio.gather(*(self._play(problem, prompt_index, index) for index in range(self._group_size)))
        return make_group(problem, prompt_index, [sample for samples in played for sample in samples])

    async def _play(self, problem: Problem, prompt_index: int, index: int) -> list[Sample]:
        """Plays one episode, when it may begin. The next one begins before this one leaves the barrier: which episodes
        take their turns together must not depend on time."""
        if self._slots is not None:
            await self._slots.acquire()
        with nullcontext() if self._barrier is None else self._barrier.active():
            try:
                return await self._episode(problem, prompt_index, index)
            finally:
                if self._slots is not None:
                    self._slots.release()
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)

    async def _episode(self, problem: Problem, prompt_index: int, index: int) -> list[Sample]:
        """Plays one episode. A failure of the environment becomes a sample without a reward."""
        episode = Episode(index, self._policy.sampling.temperature)
        environment: Environment | None = None
        try:
            environment, renderer = await self._start(problem, episode)
            for turn in range(self._limits.max_turns):
                if not await self._turn(environment, renderer, episode, prompt_index, turn):
                    break
        except EnvironmentFailed as error:
            episode.fail(f"{problem.id}: {error}")
        finally:
            if environment is not None:
                await self._close(environment, episode)
        return episode.samples()

    async def _start(self, problem: Problem, episode: Episode) -> tuple[Environment, Renderer]:
        """Starts the environment, and the episode with its first messages."""
        started = await start_episode(
            self._make,
            self._task,
            problem,
            self._policy.renderer,
            timeout_s=self._limits.timeout_s,
            close=lambda environment: self._close(environment, episode),
        )
        episode.begin(started.messages, started.tokens)
        return started.environment, started.renderer

    async def _turn(
        self, environment: Environment, renderer: Renderer, episode: Episode, prompt_index: int, turn: int
    ) -> bool:
        """Samples a reply and has the environment answer; returns whether the episode goes on."""
        place = prompt_index * self._group_size + episode.index
        if self._barrier is not None:
            await self._barrier.wait_turn(place)
        sampling = self._policy.sampling
        seed = sampling.seed + (turn + 1) * _TURN_STREAM
        sampling = replace(sampling, seed=seed, prompt_index=place, conversation=episode.conversation)
        (completion,) = await self._policy.engine.generate(episode.tokens, 1, sampling)
        episode.add_reply(completion)
        cut = completion.finish == "length"
        parsed = renderer.parse_reply(episode.messages, completion.tokens)
        calls = None if parsed is None else parsed.calls
        reply = Reply(completion.text, turn, self._limits.max_turns - turn - 1, cut, calls)
        step = as_step(await self._call(environment.step, reply))
        episode.add_step(step)
        if step.done:
            return False
        finish: Finish | None = None
        if reply.turns_left == 0:
            reason = f"stopped after workflow.max_turns={self._limits.max_turns}"
        elif cut:
            reason = "a reply was cut at max_tokens"
        elif not step.messages:
            raise EnvironmentFailed("`step` returned a Step without messages; set done=True to end the episode")
        elif not episode.go_on(as_messages(step.messages), renderer):
            reason, finish = "the conversation does not fit the context", "length"
        else:
            return True
        episode.stop(reason, await self._last_verdict(step), finish)
        return False

    async def _last_verdict(self, step: Step) -> Verdict | None:
        """Returns the verdict that the environment gave for the case that no reply can follow."""
        if step.if_last is None or isinstance(step.if_last, Verdict):
            return step.if_last
        return as_verdict(await self._call(step.if_last), "if_last returned ")

    async def _call(self, method: Callable[..., object], *arguments: object) -> object:
        return await call_with_limit(method, *arguments, timeout_s=self._limits.timeout_s)

    async def _close(self, environment: Environment, episode: Episode) -> None:
        """Closes the environment. An error of it does not change a reward that was given before."""
        if type(environment).close is Environment.close:  # it holds nothing: a thread per episode would be wasted
            return
        try:
            await self._call(environment.close)
        except EnvironmentFailed as error:
            episode.note(str(error))
