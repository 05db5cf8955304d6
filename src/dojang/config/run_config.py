"""RunConfig: all settings of a run, typed and frozen.

Each package declares its section beside its code; this module assembles them and checks settings across sections. A
union is a registry: its members are the choices of `name`.
"""

import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dojang.algos.cispo import CispoConfig
from dojang.algos.custom import CustomAlgorithmConfig
from dojang.algos.distillation import DistillationConfig
from dojang.algos.dppo import DppoConfig
from dojang.algos.grpo import (
    DapoConfig,
    DrGrpoConfig,
    GdpoConfig,
    GrpoConfig,
    MaxRlConfig,
    ReinforceBaselineConfig,
    ReinforceConfig,
    RlooConfig,
)
from dojang.algos.gspo import GspoConfig
from dojang.algos.m2po import M2poConfig
from dojang.algos.ppo import PpoConfig
from dojang.algos.sapo import SapoConfig
from dojang.algos.sft import SftConfig
from dojang.cluster.runtime_config import LocalConfig, RayConfig
from dojang.config.distillation_checks import distillation_disagreements, samples_disagreements, sft_disagreements
from dojang.config.environment_checks import environment_disagreements
from dojang.config.eval_config import Data, EvalConfig, Task, disagreements
from dojang.config.rollout_config import RolloutConfig
from dojang.core.section import Section
from dojang.environments.config import EnvironmentConfig
from dojang.judge.config import JudgeConfig
from dojang.loop.config import CheckpointConfig, HealthConfig, LoopConfig
from dojang.tasks.answer_line import AnswerLineConfig
from dojang.tasks.reward_settings import unknown_parts
from dojang.track.config import TrackConfig
from dojang.trainer.config import CriticConfig, TrainConfig
from dojang.workflows.coder_tester import CoderTesterConfig, TesterConfig
from dojang.workflows.single_turn import SingleTurnConfig

__all__ = ["STREAM_ALGORITHM", "Data", "ModelConfig", "RunConfig", "Task", "sections", "stream_chooses_algorithm"]

Algorithm = Annotated[
    GrpoConfig
    | DrGrpoConfig
    | DapoConfig
    | RlooConfig
    | ReinforceConfig
    | ReinforceBaselineConfig
    | MaxRlConfig
    | GdpoConfig
    | GspoConfig
    | CispoConfig
    | SapoConfig
    | DppoConfig
    | M2poConfig
    | PpoConfig
    | SftConfig
    | CustomAlgorithmConfig,
    Field(discriminator="name"),
]

Workflow = Annotated[SingleTurnConfig | CoderTesterConfig | EnvironmentConfig, Field(discriminator="name")]
Runtime = Annotated[LocalConfig | RayConfig, Field(discriminator="name")]


def sections(annotation: Any) -> list[type[BaseModel]]:
    """Sections that a field may hold: one, the members of a union, or none for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) is Annotated:
        return sections(typing.get_args(annotation)[0])
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return [section for member in typing.get_args(annotation) for section in sections(member)]
    return []


STREAM_ALGORITHM = "m2po"
"""Algorithm of loop.mode=stream if none is named: it is made for stale data."""


def stream_chooses_algorithm(tree: Mapping[str, Any]) -> bool:
    """Reports whether loop.mode=stream chooses the algorithm of these settings, because they name none."""
    loop, algo = tree.get("loop"), tree.get("algo")
    unnamed = algo is None or (isinstance(algo, Mapping) and "name" not in algo)
    return isinstance(loop, Mapping) and loop.get("mode") == "stream" and unnamed


class ModelConfig(Section):
    """The policy to train."""

    name: str
    """dojang-tiny, dojang-tiny-code, dojang-tiny-lake, smollm2-135m-instruct, qwen2.5-coder-1.5b-instruct,
    gemma-3-270m, a local Hugging Face directory, a GGUF file, or a hub id (org/name)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto uses a GPU if the machine has one."""
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """Dtype of forward and backward passes; auto is bfloat16 on a GPU and float32 on a CPU. Master weights are float32
    (float64 with float64)."""
    head_dtype: Literal["auto", "float32"] = "auto"
    """Dtype of the logits, in the trainer and the torch engine: float32 keeps them unrounded if the rest is bfloat16;
    auto rounds them like the rest."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables of the model's chat template, such as {enable_thinking: false}."""


class RunConfig(Section):
    """All settings of a run."""

    model: ModelConfig
    data: Data
    """Dataset of problems."""
    task: Task = AnswerLineConfig()
    """Grading of completions."""
    workflow: Workflow = SingleTurnConfig()
    """How prompts become samples: one turn, or a conversation of several models."""
    tester: TesterConfig | None = None
    judge: JudgeConfig = JudgeConfig()
    algo: Algorithm = GrpoConfig()
    """Algorithm: advantages and loss."""
    distillation: DistillationConfig | None = None
    steps: int = Field(default=100, ge=1, le=10**9)
    """Number of training steps; excludes `epochs`."""
    epochs: float | None = Field(default=None, gt=0, le=10**6)
    """Number of passes over the training problems, instead of `steps`: epochs * problems / rollout.prompts_per_step
    steps, rounded up."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Random seed of the problem order and of every sampled token."""
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    loop: LoopConfig = LoopConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    health: HealthConfig = HealthConfig()
    track: TrackConfig = TrackConfig()
    runtime: Runtime = LocalConfig()
    """Placement of trainers, engines and judges; `runtime: ray` is short for {name: ray}."""

    @model_validator(mode="before")
    @classmethod
    def _default_choices(cls, tree: Any) -> Any:
        """Fills in default names: `algo.kl_coef=0.05` alone means the default algorithm with that KL coefficient."""
        if not isinstance(tree, dict):
            return tree
        if stream_chooses_algorithm(tree):
            tree = {**tree, "algo": {"name": STREAM_ALGORITHM, **(tree.get("algo") or {})}}
        named = {
            section: {"name": cls.model_fields[section].default.name, **tree[section]}
            for section in ("task", "workflow", "algo", "runtime")
            if isinstance(tree.get(section), dict)
        }
        if isinstance(tree.get("runtime"), str):
            named["runtime"] = {"name": tree["runtime"]}
        return {key: value for key, value in {**tree, **named}.items() if key != "steps" or value is not None}

    @model_serializer(mode="wrap")
    def _unresolved_steps(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omits `steps` if `epochs` is set: it is unresolved and must not be read back."""
        tree: dict[str, Any] = serialise(self)
        return tree if self.epochs is None else {**tree, "steps": None}

    def with_steps(self, problems: int) -> "RunConfig":
        """Resolves `epochs` to `steps` for a number of training problems."""
        if self.epochs is None:
            return self
        steps = max(1, math.ceil(self.epochs * problems / self.rollout.prompts_per_step - 1e-9))
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return RunConfig.model_validate({**given, "steps": steps, "epochs": None})

    def _training_agrees(self) -> Iterator[str]:
        train = self.train
        if train.lora is not None and train.lora.base_bits == 4 and self.model.dtype == "float64":
            yield "train.lora.base_bits=4 does not support model.dtype=float64; use float32 or bfloat16"
        if self.algo.name == "custom":
            return
        own = self.distillation is not None and self.distillation.teacher == "reference"
        needs_reference = self.algo.kl_coef > 0 or self.algo.kl_in_reward > 0 or own
        if "reference" in train.offload and not (needs_reference and train.needs_reference_model):
            yield (
                "train.offload has reference, but the run has no reference model: it needs algo.kl_coef or "
                "algo.kl_in_reward above 0, and with train.lora the reference is the model without adapters"
            )
        if self.algo.kl_in_reward and self.distillation is not None and not self.distillation.reward_coef:
            yield (
                f"algo.kl_in_reward={self.algo.kl_in_reward:g} has no effect if rewards are not used "
                "(distillation.reward_coef=0); set distillation.reward_coef above 0, or use algo.kl_coef instead"
            )
        if self.algo.name != "ppo" and train.critic != CriticConfig():
            yield f"train.critic needs an algorithm with a critic (algo.name=ppo); {self.algo.name} has none"

    def _engine_agrees(self) -> Iterator[str]:
        rollout, engine = self.rollout, self.rollout.engine
        if self.model.head_dtype == "float32" and not engine.float32_head:
            yield (
                f"model.head_dtype=float32 is for rollout.engine.name=torch: logits of {engine.name} would still be "
                "rounded, and differ from the trainer's; leave it out, or use the engine torch"
            )
        if self.model.head_dtype == "float32" and self.model.dtype == "float64":
            yield "model.head_dtype=float32 is less precise than model.dtype=float64; leave it out"
        for role, each in self.roles().items():
            longest, key = each.rollout.max_tokens, "tester" if role == "tester" else "rollout"
            if rollout.max_model_len is not None and longest >= rollout.max_model_len:
                yield (
                    f"{key}.max_tokens={longest} leaves no space for a prompt within rollout.max_model_len="
                    f"{rollout.max_model_len}; lower the first or raise the second"
                )

    def _models_agree(self) -> Iterator[str]:
        """Checks that a second model goes with a workflow for two models, on programs."""
        if self.workflow.name != "coder_tester":
            if self.tester is not None:
                yield "tester is a second model: only workflow.name=coder_tester uses it"
            return
        if self.tester is None:
            yield "workflow.name=coder_tester needs a second model: set tester.model"
        elif self.rollout.engine.external != bool(self.tester.url):
            yield (
                f"rollout.engine.name={self.rollout.engine.name} and tester.url={self.tester.url} do not go "
                "together; with the engine remote the tester needs its own servers, and the others take none"
            )
        if self.task.name != "code":
            yield f"workflow.name=coder_tester needs programs (task.name=code), not {self.task.name}"
        if self.algo.name == "ppo":
            yield "workflow.name=coder_tester supports no critic, so algo.name=ppo cannot be used"

    def _workers_agree(self) -> Iterator[str]:
        if not self.loop.other_workers:
            return
        if self.rollout.engine.external:
            yield (
                "loop.workers and loop.listen: every rollout worker starts an engine, but rollout.engine.name="
                f"{self.rollout.engine.name} uses servers that run already; use the engine torch or vllm, or leave "
                "them out"
            )
        host, _ = self.loop.address("")
        if self.runtime.name == "ray" and self.loop.workers and (host in ("localhost", "::1") or host[:4] == "127."):
            yield (
                f"loop.listen={self.loop.listen}: rollout workers on other nodes of the Ray cluster cannot reach "
                f"{host}; leave loop.listen out, or use 0.0.0.0:PORT"
            )

    def with_train(self, **settings: Any) -> "RunConfig":
        """A copy with other settings of the train section."""
        return self.model_copy(update={"train": self.train.model_copy(update=settings)})

    def _runtime_agrees(self) -> Iterator[str]:
        tester, train = self.tester, self.train
        if self.runtime.name == "ray" and train.gradient_checkpointing == "auto":
            yield (
                "train.gradient_checkpointing=auto is chosen for the GPU of this machine, and with runtime.name=ray "
                "trainers are on others; set a number of layers (`dojang plan` names one where a run does not fit), or "
                "true"
            )
        if not isinstance(self.runtime, RayConfig):
            for key in ("engines", "trainers") if tester else ():
                if (count := getattr(tester, key)) is not None:
                    yield f"tester.{key}={count} is a number of Ray processes; set runtime.name=ray"
            return
        for key, trainers in (("runtime", self.runtime.trainers), ("tester", tester.trainers if tester else None)):
            if trainers is not None and trainers % train.sequence_parallel:
                yield (
                    f"{key}.trainers={trainers} must be a multiple of train.sequence_parallel={train.sequence_parallel}"
                )
            if trainers is not None and trainers > 1 and train.one_process:
                yield f"{key}.trainers={trainers}: {train.one_process}"
        if (size := self.rollout.engine.gpus()) > 1 and self.runtime.gpus is not None and 0 < self.runtime.gpus < 1:
            yield (
                f"rollout.engine.tensor_parallel_size={size} needs whole GPUs, but "
                f"runtime.gpus={self.runtime.gpus:g} gives an engine a fraction of one; leave runtime.gpus out"
            )

    @model_validator(mode="after")
    def _default_trainers(self) -> Self:
        """Sets runtime.trainers to one sequence parallel group, the fewest that work. The field stays marked as unset:
        `dojang plan` and `dojang launch` choose larger numbers by the instances."""
        runtime = self.runtime
        if isinstance(runtime, RayConfig) and "trainers" not in runtime.model_fields_set:
            filled = runtime.model_copy(update={"trainers": self.train.sequence_parallel})
            filled.model_fields_set.discard("trainers")
            self.__dict__["runtime"] = filled
        return self

    @model_validator(mode="after")
    def _default_publish(self) -> Self:
        """Sets train.lora.publish to factors where weights go to other processes. The field stays marked as unset."""
        lora, travels = self.train.lora, self.runtime.name == "ray" or self.loop.other_workers
        if lora is not None and travels and "publish" not in lora.model_fields_set and not lora.modules_to_save:
            filled = lora.model_copy(update={"publish": "factors"})
            filled.model_fields_set.discard("publish")
            self.__dict__["train"] = self.train.model_copy(update={"lora": filled})
        return self

    @model_validator(mode="after")
    def _default_mode(self) -> Self:
        """Sets loop.mode. The field stays marked as unset: another algorithm may have another default."""
        if self.loop.mode is None:
            mode = "overlap" if self.loop.lag is not None or self._corrects_lag() else "sync"
            filled = self.loop.model_copy(update={"mode": mode})
            filled.model_fields_set.discard("mode")
            self.__dict__["loop"] = filled
        return self

    def _corrects_lag(self) -> bool:
        """Whether the loss is known to correct for rollouts of older weights."""
        if self.algo.name in ("sft", "custom"):  # no rollouts; not known
            return False
        # opsm keeps samples with a positive advantage, and most others, unchanged
        return self.algo.old_logprobs != "trainer" or any(each.name != "opsm" for each in self.algo.corrections)

    def roles(self) -> "dict[str, RunConfig]":
        """Configuration of each model by its role, the main policy first."""
        if self.tester is None:
            return {"policy": self}
        own = {"name": self.tester.model, "chat_template_kwargs": self.tester.chat_template_kwargs}
        rollout: dict[str, Any] = {"max_tokens": self.tester.max_tokens or self.rollout.max_tokens}
        if self.rollout.engine.name == "remote":
            rollout["engine"] = self.rollout.engine.model_copy(update={"url": self.tester.url})
        tester = {
            "model": self.model.model_copy(update=own),
            "rollout": self.rollout.model_copy(update=rollout),
            "train": self.train.model_copy(update={"lr": self.tester.lr or self.train.lr}),
            "runtime": self._tester_runtime(self.tester),
        }
        return {"coder": self, "tester": self.model_copy(update=tester)}

    def _tester_runtime(self, tester: TesterConfig) -> Runtime:
        """Runtime with the tester's numbers of processes."""
        own = {key: count for key in ("engines", "trainers") if (count := getattr(tester, key)) is not None}
        return self.runtime.model_copy(update=own) if own else self.runtime

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        wrong = [*self._models_agree(), *self._engine_agrees(), *self._runtime_agrees(), *self._workers_agree()]
        wrong += self.eval.sampling_disagreements("eval.")
        if self.train.minibatches > self.rollout.prompts_per_step:
            wrong.append(
                f"train.minibatches={self.train.minibatches} needs at least as many rollout.prompts_per_step (now "
                f"{self.rollout.prompts_per_step}); lower train.minibatches or raise rollout.prompts_per_step"
            )
        wrong += disagreements(self.data, self.task)
        wrong += [*self._parts_agree(), *self._maxrl_agrees(), *self._training_agrees(), *self._length_agrees()]
        kind = (self.algo.name, self.workflow.name)
        wrong += distillation_disagreements(self.distillation, *kind, self.rollout, self.train)
        if self.algo.needs_group:
            wrong += samples_disagreements(self.distillation, self.algo.advantage, self.rollout.group_size)
        wrong += sft_disagreements(*kind, self.rollout, self.loop)
        wrong += environment_disagreements(self.workflow, self.data.name, self.task.name, self.algo.name)
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    def _parts_agree(self) -> Iterator[str]:
        """Checks algo.reward_weights; those of a custom task are checked when the task is built."""
        if not self.algo.reward_weights or self.task.user_code:
            return
        known = {*self.task.part_names(), *self.workflow.own_parts}
        unknown = self.algo.reward_weights.keys() - known - {"overlong"}
        if unknown:
            yield unknown_parts(unknown, known)

    def _maxrl_agrees(self) -> Iterator[str]:
        """Checks that the task has no negative rewards, which maxrl does not define; others fail during the run."""
        if self.algo.advantage == "maxrl":
            for reason in self.task.negative_rewards():
                yield f"algo.advantage=maxrl is defined for rewards of 0 and more, but {reason}"

    def _length_agrees(self) -> Iterator[str]:
        if self.epochs is not None:  # the rest is checked once the number of steps is known
            if "steps" in self.model_fields_set:
                yield f"steps={self.steps} and epochs={self.epochs:g} exclude each other; leave one of them out"
            return
        if self.loop.staleness and self.algo.name not in ("sft", "custom") and not self._corrects_lag():
            yield (
                f"loop.mode={self.loop.mode} trains on rollouts of older weights (loop.lag={self.loop.staleness}), but "
                f"with algo.old_logprobs=trainer (algo.name={self.algo.name}) importance ratios use log-probs computed "
                "just before the update, so nothing corrects for the lag; set algo.old_logprobs=behaviour, or add "
                "algo.corrections=[{name: token_tis}], or use loop.mode=sync"
            )
        updates = self.steps * self.train.steps_per_batch
        if self.train.critic.warmup_steps >= max(1, updates):
            yield (
                f"train.critic.warmup_steps={self.train.critic.warmup_steps} leaves none of the run's {updates} "
                "optimizer steps for the policy; lower it or raise steps"
            )
