"""Loads a model into an inference engine and evaluates it on one case after another."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dojang import models
from dojang.build.assemble import checked_task
from dojang.build.local import Numerics, load_model, load_tokenizer, make_engine, make_renderer, numerics, prepare_torch
from dojang.build.prompt_lengths import held_out
from dojang.build.sampling import eval_sampling, train_sampling
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DojangError, ModelError
from dojang.core.paths import cache_root
from dojang.evaluation.cases import Case
from dojang.loop.evaluate import run_all
from dojang.protocols import Task
from dojang.trainer.merge_lora import merge
from dojang.types import Completion, Group, Message, Problem, Sample, Sampling
from dojang.weight_sync.versions import WeightVersions
from dojang.workflows.section import RolloutPolicy

__all__ = ["Evaluator"]

Keep = Callable[[Group, Task, int], None]
"""Called with each finished group, its task, and the number of problems."""


class Evaluator:
    """A model in an engine. An adapter is merged into its base model in memory, as in training's weight sync."""

    def __init__(self, config: RunConfig) -> None:
        numeric = numerics(config)
        prepare_torch(numeric.device)
        folder = Path(config.model.name)
        adapter = (folder / models.ADAPTER).is_file()
        source = models.base_of(folder) if adapter else models.resolve(config.model.name)
        self.tokenizer, self._settings = load_tokenizer(source)
        if adapter and (folder / "tokenizer_config.json").is_file():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
            self.tokenizer = tokenizer
        here = config.rollout.engine.copies_trainer
        self._publish = not here and (adapter or config.rollout.engine.external)
        device = numeric.device if here else torch.device("cpu")  # other engines load the model from disk
        model: PreTrainedModel | None = None
        if adapter:
            model = _merged(folder, source, numeric, device)
        elif here or self._publish:
            model = load_model(source, numeric.compute, device)
        weights = WeightVersions(numeric.compute)
        if self._publish and model is not None:
            weights.publish(1, dict(model.named_parameters()))
        self._engine = make_engine(config, numeric, source, model, self.tokenizer, weights, alone=True)

    async def evaluate(self, case: Case, done: Mapping[int, str], keep: Keep) -> int:
        """Samples and grades the first problems of the test split, apart from those `done` (index -> id); calls `keep`
        with each group. Returns the number of overlong prompts left out."""
        await self._load()
        config = case.config
        judge = config.judge.make(cache_root())
        try:
            renderer = make_renderer(config, self.tokenizer, self._settings)
            found = held_out(config, case.problems or config.data.load("test"), renderer)
            problems = found.problems
            _check_order(problems, done)
            task = case.task or await checked_task(config, {"train": (), "test": problems}, judge)
            sampling = eval_sampling(config)
            if case.task is not None:  # the stop line is that of config.task
                sampling = replace(sampling, stop_line=config.workflow.stop_line(None))
            await config.workflow.check_start(task, problems, renderer)
            policy = RolloutPolicy(self._engine, renderer, sampling)
            workflow = config.workflow.make_eval(task, policy, config.eval.samples)
            await run_all(workflow, problems, lambda group: keep(group, task, len(problems)), skip=done.keys())
            return found.dropped
        finally:
            await judge.close()

    async def sample(
        self, config: RunConfig, prompts: Sequence[Sequence[Message]], n: int, sampling: Sampling
    ) -> list[list[Completion]]:
        """Samples n completions of each prompt."""
        await self._load()
        renderer = make_renderer(config, self.tokenizer, self._settings, "max_tokens", "shorten the prompt")
        rendered = [renderer.render(each) for each in prompts]  # all before the first one runs: one may be too long
        return await asyncio.gather(
            *(
                self._engine.generate(tokens, n, replace(sampling, prompt_index=at))
                for at, tokens in enumerate(rendered)
            )
        )

    async def policy(self, config: RunConfig, sampling: Sampling) -> RolloutPolicy:
        """Returns the policy, for other workflows."""
        await self._load()
        remedy = "shorten the conversation"
        return RolloutPolicy(
            self._engine, make_renderer(config, self.tokenizer, self._settings, "max_tokens", remedy), sampling
        )

    async def play(self, config: RunConfig, problem: Problem) -> Sequence[Sample]:
        """Plays one episode of the environment, as in training. Returns its samples; several if its conversation is in
        several token streams."""
        await self._load()
        judge = config.judge.make(cache_root())
        try:
            task = await checked_task(config, {"train": (problem,), "test": ()}, judge)
            renderer = make_renderer(config, self.tokenizer, self._settings)
            policy = RolloutPolicy(self._engine, renderer, train_sampling(config, config.seed))
            group = await config.workflow.make(task, {"policy": policy}, 1).run(problem, 0)
            return group.samples or group.unjudged
        finally:
            await judge.close()

    async def _load(self) -> None:
        """Sends the weights to an engine that does not load them from disk, once."""
        if self._publish:
            await self._engine.load(1)
            self._publish = False

    async def close(self) -> None:
        await self._engine.close()


def _check_order(problems: Sequence[Problem], done: Mapping[int, str]) -> None:
    """Raises ConfigError if the data have changed since a resumed evaluation began."""
    for index, name in done.items():
        if index >= len(problems) or problems[index].id != name:
            raise ConfigError(
                f"the data have changed: problem {index} was {name}; choose another --output to start anew"
            )


def _merged(adapter: Path, source: str, numeric: Numerics, device: torch.device) -> PreTrainedModel:
    try:
        model = merge(adapter, source)
    except DojangError:
        raise
    except Exception as error:  # peft, torch and safetensors raise different errors for weights that do not fit
        raise ModelError(
            f"the adapter in {adapter} does not fit its base model {source}, or is damaged ({error!r:.300})"
        ) from error
    torch.nn.Module.to(model, device=device, dtype=numeric.compute)
    return model
