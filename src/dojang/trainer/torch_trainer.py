"""The PyTorch trainer, in one process or as one rank of several: forward, backward, optimizer step, publish.

Losses are averaged over the whole optimizer step. So neither the micro-batch size, nor the mix of long and short
completions, nor the number of ranks changes the result beyond rounding. Every rank gets all samples and trains on its
share.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.protocols import Algorithm, LimitsRatios, TokenBatch, TokenLoss, TokenValues, WeightStore
from dojang.trainer import checkpoint
from dojang.trainer.config import TrainConfig
from dojang.trainer.critic import Critic
from dojang.trainer.divergence import LOGP_GAP, check_finite
from dojang.trainer.entropy_controller import EntropyController
from dojang.trainer.forward import Scorer, check_packed
from dojang.trainer.fsdp import full_tensor, shard
from dojang.trainer.fused_layers import compile_layers, enable_gradient_checkpointing, fuse_layers
from dojang.trainer.logprob_difference import LogprobDifference
from dojang.trainer.lora import Adapters
from dojang.trainer.loss_aggregation import count, mean_share
from dojang.trainer.lr_schedule import learning_rate, warmup_steps
from dojang.trainer.optimizer import make_optimizer, module_on_device, optimizer_on_device
from dojang.trainer.packed_attention import use_packed_attention
from dojang.trainer.packing import MicroBatch, micro_batches
from dojang.trainer.process_group import SINGLE_PROCESS, ProcessGroup
from dojang.trainer.publish import WeightPublisher
from dojang.trainer.ref_model_sync import restore_reference, save_reference, sync_reference
from dojang.trainer.teacher_model import Teacher
from dojang.trainer.token_values import TokenRecorder, per_token
from dojang.trainer.ulysses import attention_heads, check_heads, shard_sequence
from dojang.trainer.update_memory import (
    explains_out_of_memory,
    full_micro_batch,
    gradient_bytes,
    memory_metrics,
    missing_state_bytes,
    peak_bytes,
)
from dojang.types import Group, Metrics, Sample

__all__ = ["TorchTrainer"]

OPTIMISER = "optimizer"

_ENTROPY = "actor/entropy"


@explains_out_of_memory
class TorchTrainer:
    """A Trainer that owns a model with full-precision master weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        reference: PreTrainedModel | None,
        tokenizer: PreTrainedTokenizerBase,
        algorithm: Algorithm,
        weights: WeightStore,
        config: TrainConfig,
        *,
        total_updates: int,
        max_tokens: int,
        temperature: float,
        compute: torch.dtype,
        float32_head: bool = False,
        base: str = "",
        critic: Critic | None = None,
        teacher: Teacher | None = None,
        ranks: ProcessGroup = SINGLE_PROCESS,
        token_values: bool = False,
    ) -> None:
        """With LoRA, `base` is the name of the base model, and no reference model is needed. `token_values`: keep
        log-probs and entropies of updates for `take_token_values`."""

        def scorer(each: PreTrainedModel) -> Scorer:
            found = Scorer(each, temperature=temperature, compute=compute, float32_head=float32_head)
            if ranks.world > 1:
                shard(found, ranks, compute, offload=each is reference and "reference" in config.offload)
            return found

        if algorithm.requirements.reference and reference is None and config.needs_reference_model:
            raise ValueError("the algorithm needs a reference model, but none was given")
        for each in (model, reference):
            if each is not None:
                use_packed_attention(each)
                check_packed(each)
        check_heads(*attention_heads(model.config), ranks.sequence)
        self._adapters = None if config.lora is None else Adapters(model, config.lora, base)
        fuse_layers(model)
        enable_gradient_checkpointing(model, config.gradient_checkpointing)
        if config.compile:
            compile_layers(model)
        self._model = model
        self._policy = scorer(model)
        self._reference = None if reference is None else scorer(reference)
        self._ranks = ranks
        self._tokenizer = tokenizer
        self._algorithm = algorithm
        self._weights = weights
        self._publisher = WeightPublisher(model, self._adapters, weights, config, compute, ranks)
        self._config = config
        self._max_microbatch_tokens = config.microbatch_tokens(gpu=model.device.type == "cuda")
        self._total_updates = total_updates
        self._max_tokens = max_tokens
        self._critic = critic
        self._teacher = teacher
        self._critic_warmup = critic.warmup if critic is not None else 0
        self._updates, self._skipped = 0, 0
        """Optimizer steps, and skipped ones, without a gradient; the schedule counts both."""
        self._published: int | None = 0
        """Version of the current weights; None if they are not published."""
        self._entropy_bonus: EntropyController | None = getattr(algorithm, "entropy_bonus", None)
        self._entropy, self._recorder = math.inf, TokenRecorder(enabled=token_values)
        self._optimizer = make_optimizer(self._model, config)

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        counts, samples, others = count(groups, self._algorithm)
        self._recorder.begin(groups)
        tokens = counts.trained_tokens
        batches, report = self._batches(samples), self._batches(others)
        limit, figures = self._limit(batches) if self._algorithm.requirements.limit else (math.inf, {})
        if self._critic is not None:
            figures = {**figures, **self._critic.backward(batches, tokens)}
            if self._updates < self._critic_warmup:
                check_finite(figures)
                return figures
        bonus = 0.0 if self._entropy_bonus is None else self._entropy_bonus.coef
        loss, sums, difference = 0.0, defaultdict[str, float](float), LogprobDifference()
        references = self._batch_ref_logprobs([*batches, *report])
        for place, (batch, reference_BT) in enumerate(zip([*batches, *report], references, strict=True)):
            trains = place < len(batches)
            with torch.set_grad_enabled(trains):
                found = self._losses(batch, reference_BT, limit, difference)
            if trains:
                share = mean_share(
                    found.loss_BT, batch.mask_BT, self._algorithm.loss_aggregation, counts, self._max_tokens
                )
                if bonus:
                    share = share - bonus * found.figures[_ENTROPY].sum() / tokens
                if batch.idle:
                    share = share * 0.0
                (share * self._ranks.world).backward()  # type: ignore[no-untyped-call]  # FSDP averages over ranks
                loss += float(share.detach())
            for name, value_BT in found.figures.items():
                sums[name] += 0.0 if batch.idle else float(value_BT.detach()[batch.mask_BT].sum())
        losses, summed, differences = zip(*self._ranks.gather((loss, dict(sums), difference)), strict=True)
        means = {name: sum(each[name] for each in summed) / max(1, counts.tokens) for name in sums}
        metrics = {"actor/loss": sum(losses), **means, **figures, **LogprobDifference.metrics(differences)}
        self._entropy = means.get(_ENTROPY, self._entropy)
        if self._entropy_bonus is not None:
            metrics["actor/entropy_coef"] = bonus
        check_finite(metrics)
        return metrics

    async def optim_step(self) -> Metrics:
        norm = float(full_tensor(torch.nn.utils.clip_grad_norm_(self._trainable(), self._config.max_grad_norm)))
        norms = {"actor/grad_norm": norm, **(self._critic.clip() if self._critic is not None else {})}
        check_finite(norms)
        config, total = self._config, self._total_updates - self._critic_warmup
        rate = learning_rate(
            max(0, self._updates + self._skipped - self._critic_warmup),
            peak=config.lr,
            warmup=warmup_steps(total, steps=config.warmup_steps, ratio=config.warmup_ratio),
            total=total,
            schedule=config.schedule,
            min_ratio=config.min_lr_ratio,
        )
        for settings in self._optimizer.param_groups:
            settings["lr"] = rate
        with optimizer_on_device(self._model.device, self._optimizer, offload="optimizer" in self._config.offload):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._critic is not None:
            self._critic.step()
        if self._entropy_bonus is not None and self._updates >= self._critic_warmup:
            self._entropy_bonus.update(self._entropy)
        self._updates += 1
        self._published = None
        if (every := config.ref_model_sync_steps) and self._reference is not None and self._updates % every == 0:
            sync_reference(self._policy, self._reference, config.ref_model_mixup_alpha)
        return {**norms, "actor/lr": rate, **memory_metrics(self._model.device)}

    async def skip_steps(self, count: int) -> None:
        self._skipped += count

    async def take_token_values(self) -> list[TokenValues]:
        return self._recorder.take(self._ranks)

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return self._per_token(samples, lambda batch: self._policy(batch)[0])

    async def compute_values(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        assert self._critic is not None, "called only with a critic"
        return self._per_token(samples, self._critic.values)

    async def ref_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        with self._as_reference() as scorer:
            return self._per_token(samples, lambda batch: scorer(batch)[0])

    async def teacher_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        assert self._teacher is not None, "called only with a local teacher"
        with self._teacher.loaded(self._model.device) as scorer:
            return self._per_token(samples, lambda batch: scorer(batch)[0])

    async def publish(self, version: int) -> None:
        self._publisher.publish(version)
        self._published = version

    async def save(self, path: Path) -> None:
        if self._adapters is None:
            checkpoint.save_weights(path, self._model, write=self._ranks.first)
        else:
            self._adapters.save(path, write=self._ranks.first)
        if self._ranks.first:
            self._tokenizer.save_pretrained(path)
        entropy = None if self._entropy_bonus is None else json.dumps(self._entropy_bonus.state())
        notes = {"version": self._updates, "skipped": self._skipped, "entropy": entropy}
        checkpoint.save_optimizer(path / OPTIMISER, self._model, self._optimizer, **notes)
        if self._config.ref_model_sync_steps and self._reference is not None:
            save_reference(path, self._reference)
        if self._critic is not None:
            self._critic.save(path)

    async def restore(self, path: Path) -> None:
        with checkpoint.checkpoint_errors(path):
            weights: checkpoint.State = {}
            if self._ranks.first:
                adapters = self._adapters
                weights = checkpoint.read_weights(path, self._model) if adapters is None else adapters.read(path)
            if self._config.ref_model_sync_steps and self._reference is not None:
                restore_reference(path, self._reference)
            if self._critic is not None:
                self._critic.restore(path)
            notes = {"version": 0, "skipped": 0, "entropy": None}
            state = checkpoint.load_optimizer(path / OPTIMISER, self._model, self._optimizer, **notes)
            self._updates, self._skipped = state["version"], state["skipped"]
            self._published = None
            if self._entropy_bonus is not None and state["entropy"] is not None:
                self._entropy_bonus.restore(json.loads(state["entropy"]))
        checkpoint.load_weights(self._model, weights)

    def measure_passes(self) -> int:
        """Measures the GPU memory of forward and backward passes, by two over a full micro-batch: the second one next
        to the gradients of the first. All ranks must call this."""

        def passes() -> None:
            for _ in range(2):
                for batch in self._batches(samples):
                    logp_BT, _ = self._policy(batch)
                    (logp_BT.sum() * 0.0).backward()

        samples = full_micro_batch(self._max_microbatch_tokens * self._ranks.data, self._max_tokens)
        found = peak_bytes(self._model.device, passes)
        self._optimizer.zero_grad(set_to_none=True)
        return found

    def reserved_bytes(self, passes: int, versions: int) -> int:
        """GPU memory that updates will still allocate, with `passes` bytes for forward and backward passes, and that
        `versions` more published versions take."""
        offload, state = self._config.offload, missing_state_bytes(self._config.optimizer, self._optimizer)
        found = passes + (0 if self._critic is None else self._critic.missing_bytes())
        if "optimizer" in offload:  # its state visits the GPU between two passes
            found = max(found, gradient_bytes(self._optimizer) + state)
        else:
            found += state
        return found + versions * self._publisher.version_bytes() + self._publisher.shared_bytes()

    async def close(self) -> None:
        if self._ranks.world > 1 and torch.distributed.is_initialized():  # another trainer may have closed it
            torch.distributed.destroy_process_group()

    def _trainable(self) -> list[torch.nn.Parameter]:
        return [each for each in self._model.parameters() if each.requires_grad]

    def _batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        """Micro-batches of this rank; all ranks have the same number."""
        ranks = self._ranks
        some = micro_batches(samples, self._max_microbatch_tokens, self._model.device, ranks.data, ranks.data_rank)
        return [shard_sequence(batch, ranks) for batch in some]

    def _per_token(self, samples: Sequence[Sample], compute: Callable[[MicroBatch], Tensor]) -> list[tuple[float, ...]]:
        return per_token(samples, self._batches, compute, self._ranks)

    def _limit(self, batches: Sequence[MicroBatch]) -> tuple[float, Metrics]:
        """Algorithm.limit over all tokens of this optimizer step."""
        deltas, advantages = [], []
        with torch.no_grad():
            for batch in batches:
                logp_BT, _ = self._policy(batch)
                delta_BT = logp_BT - self._old(batch, logp_BT)
                if not batch.idle:
                    deltas.append(delta_BT[batch.mask_BT].cpu())
                    advantages.append(batch.advantage_BT[batch.mask_BT].cpu())
        everyones = [[part for parts in self._ranks.gather(mine) for part in parts] for mine in (deltas, advantages)]
        if not everyones[0]:  # no trained tokens
            return math.inf, {}
        delta_N, advantage_N = (torch.cat(parts).to(self._model.device) for parts in everyones)
        return cast(LimitsRatios, self._algorithm).limit(delta_N, advantage_N)

    def _losses(
        self, batch: MicroBatch, reference_BT: Tensor | None, limit: float, difference: LogprobDifference
    ) -> TokenLoss:
        """Loss of each token, and metrics."""
        logp_BT, entropy_BT = self._policy(batch)
        self._recorder.add(batch, logp_BT, entropy_BT)
        behaviour_BT = _finite(batch.behaviour_logp_BT, logp_BT)
        found = self._algorithm.loss(
            TokenBatch(
                logp_BT=logp_BT,
                old_logp_BT=self._old(batch, logp_BT),
                behaviour_logp_BT=behaviour_BT,
                ref_logp_BT=reference_BT,
                advantage_BT=batch.advantage_BT.to(logp_BT.dtype),
                mask_BT=batch.mask_BT,
                limit=limit,
            )
        )
        gap_BT = (logp_BT.detach() - behaviour_BT).abs()
        if not batch.idle:
            difference.add(gap_BT[batch.mask_BT & self._sampled_now(batch)])
        ruled_out_BT = batch.behaviour_logp_BT.isneginf().to(gap_BT.dtype)
        figures = {_ENTROPY: entropy_BT, "actor/zero_prob_tokens": ruled_out_BT}
        if batch.samples[0].version >= 0:  # SFT completions were not sampled
            figures[LOGP_GAP] = gap_BT
        return replace(found, figures={**found.figures, **figures})

    def _sampled_now(self, batch: MicroBatch) -> Tensor:
        """Which samples are wholly of the current weights: only their log-probs can be compared. A sample that got new
        weights on the way has keys and values of older ones, also for its new tokens."""
        same_B = torch.tensor([sample.oldest_version == self._published for sample in batch.samples])
        return same_B.to(batch.mask_BT.device)[:, None]

    def _batch_ref_logprobs(self, batches: Sequence[MicroBatch]) -> list[Tensor | None]:
        """Reference log-probs of each micro-batch, if the loss needs them."""
        if not self._algorithm.requirements.ref_logprobs:
            return [None] * len(batches)
        with self._as_reference() as scorer:
            return [scorer(batch)[0] for batch in batches]

    @contextmanager
    def _as_reference(self) -> Iterator[Scorer]:
        """The reference model on the device, without gradients; with LoRA only, the policy with adapters disabled."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self._reference is None and self._adapters is not None:
                stack.enter_context(self._adapters.disabled())
            elif self._reference is not None:
                offload = "reference" in self._config.offload and self._ranks.world == 1
                stack.enter_context(module_on_device(self._model.device, self._reference, offload=offload))
            yield self._reference or self._policy

    def _old(self, batch: MicroBatch, logp_BT: Tensor) -> Tensor:
        first = not batch.samples[0].old_logprobs.size  # update on the batch
        if self._algorithm.requirements.old_logprobs and first:
            return logp_BT.detach()
        return _finite(batch.old_logp_BT, logp_BT)


def _finite(told_BT: Tensor, logp_BT: Tensor) -> Tensor:
    """Replaces -inf log-probs of the engine by the trainer's own: their ratio is 1."""
    return torch.where(told_BT.isneginf(), logp_BT.detach(), told_BT.to(logp_BT.dtype))
