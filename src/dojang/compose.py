"""The composition root: RunConfig -> wired objects. The only file that knows every room."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from dojang import models
from dojang.config import RunConfig
from dojang.engines.torch import TorchEngine
from dojang.errors import ConfigError, DataError, ModelError
from dojang.loop.agreement import Agreement
from dojang.loop.best import Best
from dojang.loop.health import HealthGate
from dojang.loop.sync import Run
from dojang.places import cache_root
from dojang.protocols import Algorithm, Judge, RolloutEngine, Task, Trainer, WeightStore
from dojang.rundir import RunDir
from dojang.tasks.code import CodeConfig
from dojang.track.console import ConsoleTracker
from dojang.track.fanout import Fanout
from dojang.track.files import FileTracker
from dojang.train import team
from dojang.train.bits import load_quantised
from dojang.train.critic import Critic
from dojang.train.ranks import Ranks, check_world, join
from dojang.train.team import Team
from dojang.train.torch import TorchTrainer
from dojang.types import Group, Problem, Sampling
from dojang.weights.memory import MemoryWeights
from dojang.workflows.render import ChatRenderer
from dojang.workflows.single_turn import SingleTurn

__all__ = ["Examiner", "Numerics", "Prepared", "build", "follow", "make_renderer", "numerics", "prepare"]

EVAL_STREAM = 2**32
"""Added to the seed, which is smaller, so that evaluations never share random numbers with training."""


TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.2}
"""How far log-probs of the engine and the trainer may be apart on average, by the precision they compute in."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """Where and how precisely the arithmetic is done."""

    device: torch.device
    compute: torch.dtype
    master: torch.dtype


def numerics(config: RunConfig) -> Numerics:
    """Resolve `auto`."""
    cuda = torch.cuda.is_available()
    if config.model.device == "cuda" and not cuda:
        raise ConfigError("model.device=cuda, but torch sees no GPU here; use model.device=cpu, or see `dojang doctor`")
    device = torch.device("cuda" if cuda and config.model.device != "cpu" else "cpu")
    if device.type == "cuda":
        rank = int(os.environ.get("LOCAL_RANK", "0"))  # torchrun's: a GPU for each process
        if rank >= torch.cuda.device_count():
            raise ConfigError(
                f"there are more processes than GPUs, of which there are {torch.cuda.device_count()} here"
            )
        torch.cuda.set_device(rank)
    chosen = config.model.dtype
    if chosen == "auto":
        chosen = "bfloat16" if device.type == "cuda" else "float32"
    compute: torch.dtype = getattr(torch, chosen)
    return Numerics(device, compute, torch.float64 if compute is torch.float64 else torch.float32)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What can go wrong cheaply, made first: data, task and algorithm."""

    task: Task
    algorithm: Algorithm
    train: Sequence[Problem]
    held_out: Sequence[Problem]
    judge: Judge
    """Whoever is done with this closes it."""


def prepare(config: RunConfig, *, dry: bool = False) -> Prepared:
    """Load the data and make the task and the algorithm; an empty split is an error here, not a puzzle later. `dry`:
    not by the processes that are to run it."""
    models.check(config.model.name)
    if not dry and check_world(config.train.sequence_ranks) > 1 and config.train.optimiser == "adamw8bit":
        raise ConfigError("train.optimiser=adamw8bit is for one process; with several, what it keeps is spread anyway")
    judge = config.judge.make(cache_root())
    task = _make_task(config, judge)
    splits = {split: task.problems(split) for split in ("train", "test")}
    for split, problems in splits.items():
        if not problems:
            raise DataError(f"the {split} split of {config.data.name} is empty")
    return Prepared(
        task,
        config.algo.make(config.rollout.max_tokens),
        splits["train"],
        splits["test"][: config.eval.problems],
        judge,
    )


def _make_task(config: RunConfig, judge: Judge) -> Task:
    problems = {split: config.data.load(split) for split in ("train", "test")}

    async def make() -> Task:
        try:
            return await _checked_task(config, problems, judge)
        except BaseException:
            await judge.close()
            raise

    return asyncio.run(make())


async def _checked_task(config: RunConfig, problems: Mapping[str, Sequence[Problem]], judge: Judge) -> Task:
    """With a judge that knows the languages of its problems, if it needs one."""
    if not isinstance(config.task, CodeConfig):
        return config.task.make(problems)
    task = config.task.make(problems, judge)
    for language in sorted(task.languages):
        await config.judge.check(judge, language)
    return task


def make_renderer(config: RunConfig, prepared: Prepared, source: str) -> tuple[PreTrainedTokenizerBase, ChatRenderer]:
    """The model's tokenizer and how it is asked. Fails if a prompt is too long, before anything runs: the
    longest in characters stand for the rest."""
    tokenizer, settings = _load_tokenizer(source)
    return tokenizer, _make_renderer(config, tokenizer, settings, [*prepared.train, *prepared.held_out])


def _load_tokenizer(source: str) -> tuple[PreTrainedTokenizerBase, PreTrainedConfig]:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
        settings = AutoConfig.from_pretrained(source).get_text_config()
    except Exception as error:  # transformers raises many kinds; each says what it could not do
        raise ModelError(f"the tokenizer of {source} cannot be loaded: {error}") from error
    return tokenizer, settings


def _make_renderer(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, settings: PreTrainedConfig, problems: Sequence[Problem]
) -> ChatRenderer:
    context = getattr(settings, "max_position_embeddings", None)  # models without positions have no such limit
    renderer = ChatRenderer(tokenizer, context=context, max_tokens=config.rollout.max_tokens)
    for problem in sorted(problems, key=lambda each: sum(len(turn.content) for turn in each.messages))[-8:]:
        renderer.render(problem.messages)
    return renderer


def build(config: RunConfig, prepared: Prepared, directory: RunDir, console: Console, *, first: int = 0) -> Run:
    """Everything a run needs, from step `first` on."""
    numeric = numerics(config)
    _prepare_torch(numeric.device)
    ranks = join(numeric.device, config.train.sequence_ranks)
    source = models.resolve(config.model.name)
    tokenizer, renderer = make_renderer(config, prepared, source)
    weights = MemoryWeights(numeric.compute)
    policy = _load_policy(config, numeric, source, ranks)
    engine = _make_engine(config, numeric, source, policy, tokenizer, weights)
    trainer: Trainer = _make_trainer(config, numeric, source, policy, tokenizer, prepared.algorithm, weights, ranks)
    if ranks.world > 1:
        trainer = Team(trainer, ranks)

    def workflow(samples: int, temperature: float, seed: int) -> SingleTurn:
        sampling = Sampling(temperature, config.rollout.max_tokens, seed=seed, stop=config.data.stop)
        return SingleTurn(engine, prepared.task, renderer, samples=samples, sampling=sampling)

    return Run(
        seed=config.seed,
        steps=config.steps,
        prompts=config.rollout.prompts,
        updates=config.train.updates,
        eval_every=config.eval.every,
        save_every=config.checkpoint.every,
        problems=prepared.train,
        held_out=prepared.held_out,
        workflow=workflow(config.rollout.samples, config.rollout.temperature, config.seed),
        exam=workflow(config.eval.samples, config.eval.temperature, config.seed + EVAL_STREAM),
        engine=engine,
        algorithm=prepared.algorithm,
        trainer=trainer,
        tracker=Fanout(
            [
                FileTracker(directory, tokenizer),
                ConsoleTracker(console, first=first, steps=config.steps, eval_every=config.eval.every),
            ]
        ),
        gate=HealthGate(config.health),
        directory=directory,
        primed=config.rollout.engine == "torch" and config.train.lora is None,
        stale=config.loop.stale_updates // config.train.updates,
        critic=_has_critic(prepared.algorithm),
        best=Best(config.checkpoint.metric, config.checkpoint.mode, config.checkpoint.keep),
        agreement=Agreement(
            engine=engine,
            trainer=trainer,
            renderer=renderer,
            problems=prepared.train,
            sampling=Sampling(config.rollout.temperature, config.rollout.max_tokens, seed=config.seed),
            tolerance=TOLERANCE[numeric.compute],
        ),
    )


class Examiner:
    """A model and what it is asked with, for one evaluation after the other."""

    def __init__(self, config: RunConfig) -> None:
        numeric = numerics(config)
        _prepare_torch(numeric.device)
        source = models.resolve(config.model.name)
        self._tokenizer, self._settings = _load_tokenizer(source)
        weights = MemoryWeights(numeric.compute)
        model = _load_model(source, numeric.compute, numeric.device)
        self._engine = _make_engine(config, numeric, source, model, self._tokenizer, weights)

    async def examine(self, config: RunConfig, told: Callable[[int], None]) -> list[Group]:
        """Pose the first problems of the test split; whenever one is done, how many there are is told."""
        judge = config.judge.make(cache_root())
        try:
            problems = config.data.load("test")[: config.eval.problems]
            task = await _checked_task(config, {"test": problems}, judge)
            renderer = _make_renderer(config, self._tokenizer, self._settings, problems)
            sampling = Sampling(
                config.eval.temperature,
                config.rollout.max_tokens,
                seed=config.seed + EVAL_STREAM,
                stop=config.data.stop,
            )
            workflow = SingleTurn(self._engine, task, renderer, samples=config.eval.samples, sampling=sampling)

            async def attempt(place: int, problem: Problem) -> Group:
                group = await workflow.run(problem, place)
                told(len(problems))
                return group

            return await asyncio.gather(*(attempt(place, problem) for place, problem in enumerate(problems)))
        finally:
            await judge.close()

    async def close(self) -> None:
        await self._engine.close()


def follow(config: RunConfig) -> None:
    """Be one of the ranks behind the first, until it is done."""
    numeric = numerics(config)
    _prepare_torch(numeric.device)
    ranks = join(numeric.device, config.train.sequence_ranks)
    source = models.resolve(config.model.name)
    tokenizer = AutoTokenizer.from_pretrained(source)
    algorithm = config.algo.make(config.rollout.max_tokens)
    weights = MemoryWeights(numeric.compute)
    policy = _load_policy(config, numeric, source, ranks)
    team.follow(_make_trainer(config, numeric, source, policy, tokenizer, algorithm, weights, ranks), ranks)


def _load_policy(config: RunConfig, numeric: Numerics, source: str, ranks: Ranks) -> PreTrainedModel:
    lora = config.train.lora
    if lora is not None and lora.bits == 4:
        return load_quantised(source, numeric.compute, numeric.device)
    return _load_model(source, numeric.master if lora is None else numeric.compute, _trained_on(numeric, ranks))


def _trained_on(numeric: Numerics, ranks: Ranks) -> torch.device:
    """To be spread over ranks, a model may be larger than any one device."""
    return numeric.device if ranks.world == 1 else torch.device("cpu")


def _make_trainer(
    config: RunConfig,
    numeric: Numerics,
    source: str,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    algorithm: Algorithm,
    weights: WeightStore,
    ranks: Ranks,
) -> TorchTrainer:
    device, aside = _trained_on(numeric, ranks), torch.device("cpu")
    reference = None
    if algorithm.needs_reference and config.train.lora is None:
        reference = _load_model(source, numeric.compute, aside if "reference" in config.train.offload else device)
    critic = None
    if _has_critic(algorithm):
        critic = Critic(
            _load_model(source, numeric.master, device), algorithm, config.train, compute=numeric.compute, ranks=ranks
        )
    return TorchTrainer(
        policy,
        reference,
        tokenizer,
        algorithm,
        weights,
        config.train,
        total_updates=config.steps * config.train.updates - config.loop.stale_updates,
        longest=config.rollout.max_tokens,
        temperature=config.rollout.temperature,
        compute=numeric.compute,
        base=config.model.name,
        critic=critic,
        ranks=ranks,
    )


def _has_critic(algorithm: Algorithm) -> bool:
    return getattr(algorithm, "needs_critic", False)  # algorithms of one's own need not say


def _make_engine(
    config: RunConfig,
    numeric: Numerics,
    source: str,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    weights: WeightStore,
) -> RolloutEngine:
    rollout = config.rollout
    if rollout.engine == "torch":
        there = policy.device.type == numeric.device.type and not getattr(policy, "is_quantized", False)
        return TorchEngine(  # it takes copies
            policy if there else _load_model(source, numeric.compute, numeric.device),
            tokenizer,
            weights,
            slots=rollout.slots,
            kv_gb=rollout.kv_gb,
            chunk=rollout.chunk,
            threads=_engine_threads(config),
            dtype=numeric.compute,
        )
    if rollout.engine == "vllm":
        from dojang.engines.vllm import VllmEngine

        dtype = str(numeric.compute).removeprefix("torch.")
        return VllmEngine(source, tokenizer, weights, slots=rollout.slots, kv_gb=rollout.kv_gb, dtype=dtype)
    from dojang.engines.fleet import Fleet
    from dojang.engines.remote import RemoteEngine

    folder = Path(rollout.handover) if rollout.handover else None
    token = os.environ.get(rollout.token_env) or None
    servers = [RemoteEngine(url, tokenizer, weights, folder=folder, token=token) for url in rollout.url]
    return servers[0] if len(servers) == 1 else Fleet(servers)


def _engine_threads(config: RunConfig) -> int | None:
    judges_here = isinstance(config.task, CodeConfig) and not config.judge.url
    return config.rollout.threads or (max(1, torch.get_num_threads() - 1) if judges_here else None)


def _prepare_torch(device: torch.device) -> None:
    # On a GPU the backward pass of attention has no order fixed: runs repeat there only up to rounding.
    torch.use_deterministic_algorithms(device.type == "cpu")
    # cuDNN's attention plans anew for every new shape, and decoding has a new one at every token.
    torch.backends.cuda.enable_cudnn_sdp(False)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own bars would fight with ours


def _load_model(source: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except Exception as error:
        raise ModelError(f"model {source} cannot be loaded: {error}") from error
    # Dropout stays off while training too: the probabilities that are trained must be those that were sampled.
    model.train(False)
    torch.nn.Module.to(model, device)
    return model
