"""Loads a model into a rollout engine and evaluates it on one dataset after another."""

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dojang import models
from dojang.build.assemble import checked_task
from dojang.build.local import Numerics, load_model, load_tokenizer, make_engine, make_renderer, numerics, prepare_torch
from dojang.build.prompt_lengths import held_out
from dojang.build.sampling import eval_sampling
from dojang.config.run_config import RunConfig
from dojang.core.errors import DojangError, ModelError
from dojang.core.paths import cache_root
from dojang.loop.evaluate import examine
from dojang.trainer.merge_lora import merge
from dojang.types import Group
from dojang.weight_sync.in_memory import MemoryWeights
from dojang.workflows.single_turn import SingleTurn

__all__ = ["Examiner"]


class Examiner:
    """A model in an engine. An adapter is merged into its base model in memory, as training publishes it."""

    dropped = 0
    """Number of overlong prompts that the last evaluation left out."""

    def __init__(self, config: RunConfig) -> None:
        numeric = numerics(config)
        prepare_torch(numeric.device)
        folder = Path(config.model.name)
        adapter = (folder / models.ADAPTER).is_file()
        source = models.base_of(folder) if adapter else models.resolve(config.model.name)
        self._tokenizer, self._settings = load_tokenizer(source)
        if adapter and (folder / "tokenizer_config.json").is_file():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
            self._tokenizer = tokenizer
        here = config.rollout.engine == "torch"
        device = numeric.device if here else torch.device("cpu")  # other engines load the model for themselves
        model = _merged(folder, source, numeric, device) if adapter else load_model(source, numeric.compute, device)
        weights = MemoryWeights(numeric.compute)
        self._publish = not here and (adapter or config.rollout.engine == "remote")
        if self._publish:
            weights.publish(1, dict(model.named_parameters()))
        self._engine = make_engine(config, numeric, source, model, self._tokenizer, weights, alone=True)

    async def examine(self, config: RunConfig, told: Callable[[int], None]) -> tuple[Group, ...]:
        """Answers and grades the first problems of the test split; calls `told` with their number after each."""
        if self._publish:
            await self._engine.load(1)
            self._publish = False
        judge = config.judge.make(cache_root())
        try:
            renderer = make_renderer(config, self._tokenizer, self._settings)
            found = held_out(config, config.data.load("test"), renderer)
            problems, self.dropped = found.problems, found.dropped
            task = await checked_task(config, {"train": (), "test": problems}, judge)
            workflow = SingleTurn(
                self._engine, task, renderer, samples=config.eval.samples, sampling=eval_sampling(config)
            )
            return await examine(workflow, problems, lambda: told(len(problems)))
        finally:
            await judge.close()

    async def close(self) -> None:
        await self._engine.close()


def _merged(adapter: Path, source: str, numeric: Numerics, device: torch.device) -> PreTrainedModel:
    try:
        model = merge(adapter, source)
    except DojangError:
        raise
    except Exception as error:  # peft, torch and safetensors each have their own for weights that do not fit
        raise ModelError(
            f"the adapter in {adapter} does not fit its base model {source}, or is damaged ({error!r:.300})"
        ) from error
    torch.nn.Module.to(model, device=device, dtype=numeric.compute)
    return model
