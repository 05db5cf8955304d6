"""Session: the verbs of reinforcement learning, for training loops of your own.

    async with dojang.Session("quickstart") as session:
        for _ in range(40):
            groups = await session.sample()          # rollouts, rewards and advantages of the next prompts
            await session.forward_backward(groups)   # accumulate gradients
            await session.optim_step()
            await session.publish()                  # the engine samples with the new weights
        await session.save("my-model")

A session has the engine, trainer, judge and algorithm that `dojang.train` would use for the same configuration.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console

from dojang.api.settings import Source, make_config
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.core.paths import writable
from dojang.core.run_dir import RunDir
from dojang.runs.training import import_build, process_count
from dojang.types import Group, Metrics, Problem, Sample

if TYPE_CHECKING:
    from dojang.build.assemble import Prepared
    from dojang.loop.run import Run

__all__ = ["Session"]


class Session:
    """An engine, a trainer and a task, to be driven by your own loop. Use it with `async with`."""

    def __init__(self, config: Source | None = None, **arguments: Any) -> None:
        """`config` is a recipe's name, a YAML file, a tree of settings or a RunConfig; `arguments` are those of
        `dojang.train`: model, dataset, reward_funcs, task, algo, overrides, and sections such as train={"lr": 1e-5}."""
        self.config = make_config(config, **arguments, caller="dojang.Session")
        if self.config.runtime.name != "local":
            raise ConfigError("a Session runs in this process; leave runtime out, or use dojang.train for Ray")
        if self.config.loop.other_workers:
            raise ConfigError(
                "a Session samples in this process; leave loop.workers and loop.listen out, or use dojang.train"
            )
        if (count := process_count()) > 1:
            raise ConfigError(f"a Session runs in one process, but torchrun started {count}; use dojang.train")
        self._open = AsyncExitStack()
        self._run: Run | None = None
        self._prompts_drawn = 0
        self._version = 0

    def __enter__(self) -> Self:
        raise ConfigError("a Session is asynchronous: use `async with`, in an async function or a notebook cell")

    def __exit__(self, *_: object) -> None:
        """Needed for the error above."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            folder = opening.enter_context(TemporaryDirectory(prefix="dojang-session-"))
            # In a thread: building runs event loops, and takes a while.
            run, prepared = await asyncio.to_thread(_build, self.config, RunDir(Path(folder)))
            for each in (prepared.judge, run.trainer, run.engine, run.distiller):
                if each is not None:
                    opening.push_async_callback(each.close)
            if not run.weights_synced:
                await run.trainer.publish(0)
                await run.engine.load(0)
            self._run = run
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run = None
        await self._open.aclose()

    @property
    def problems(self) -> Sequence[Problem]:
        """Training problems."""
        return self._opened.problems

    @property
    def held_out(self) -> Sequence[Problem]:
        """Held-out problems."""
        return self._opened.held_out

    async def sample(self, problems: int | Sequence[Problem] | None = None) -> list[Group]:
        """Samples, grades and compares a group of completions per problem. Without problems, or with their number,
        draws the next ones in the seeded order of `dojang.train` (rollout.prompts_per_step)."""
        from dojang.loop.advantages import compute_advantages
        from dojang.loop.prompt_sampler import draw_prompts
        from dojang.loop.rollout import rollout

        run, first = self._opened, self._prompts_drawn
        if problems is None or isinstance(problems, int):
            count = run.prompts_per_step if problems is None else problems
            if count < 1:
                raise ConfigError(f"problems={count} must be at least 1")
            prompts = draw_prompts(run.problems, run.seed, first, count)
        elif not all(isinstance(each, Problem) for each in problems):
            raise ConfigError("problems must be dojang.Problem objects, such as those of session.problems")
        else:
            prompts = list(enumerate(problems, start=first))
        self._prompts_drawn += len(prompts)
        return compute_advantages(run.algorithm, await rollout(run, prompts), run.credit)

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        """Accumulates the gradient of the algorithm's loss over these groups. Returns metrics of the loss."""
        if isinstance(groups, Group) or not groups or not all(isinstance(each, Group) for each in groups):
            raise ConfigError("groups must be a list of dojang.Group, such as session.sample() returns, and not empty")
        return await self._opened.trainer.forward_backward(groups)

    async def optim_step(self) -> Metrics:
        """Clips the gradient, updates the weights, clears the gradient. Returns its norm and the learning rate."""
        return await self._opened.trainer.optim_step()

    async def publish(self) -> int:
        """Sends the trainer's weights to the engine. Returns their version."""
        self._version += 1
        await self._opened.trainer.publish(self._version)
        await self._opened.engine.load(self._version)
        return self._version

    async def logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Computes the trainer's log-probs of each sample's tokens; 0 for prompt tokens."""
        if isinstance(samples, Sample) or not all(isinstance(each, Sample) for each in samples):
            raise ConfigError("samples must be a list of dojang.Sample, such as those of a group")
        return await self._opened.trainer.score(samples)

    async def evaluate(self, problems: Sequence[Problem] | None = None) -> float:
        """Returns the accuracy on held-out problems, or on those given, with the settings of `eval`."""
        from dojang.loop.evaluate import evaluate

        found = await evaluate(self._opened.eval_workflow, self.held_out if problems is None else problems)
        return found.score

    async def save(self, path: str | Path) -> Path:
        """Writes a Hugging Face directory with optimizer state. Returns its path."""
        path = Path(path)
        with writable("the directory", path):
            path.mkdir(parents=True, exist_ok=True)
        await self._opened.trainer.save(path)
        return path

    async def restore(self, path: str | Path) -> None:
        """Continues from weights and optimizer state that `save` wrote, and publishes them."""
        if not Path(path).is_dir():
            raise ConfigError(f"{path} is not a directory that Session.save wrote")
        await self._opened.trainer.restore(Path(path))
        await self.publish()

    @property
    def _opened(self) -> "Run":
        if self._run is None:
            raise ConfigError("the session is not open; use `async with dojang.Session(...) as session:`")
        return self._run


def _build(config: RunConfig, directory: RunDir) -> "tuple[Run, Prepared]":
    import_build()
    from dojang.build import assemble

    track = config.track.model_copy(update={"token_values": "none"})  # no tracker takes them
    prepared = assemble.prepare(config.model_copy(update={"track": track}))
    try:
        return assemble.build(prepared.config, prepared, directory, Console(quiet=True)), prepared
    except BaseException:
        asyncio.run(prepared.judge.close())
        raise
