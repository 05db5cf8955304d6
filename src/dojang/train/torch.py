"""Fine-tuning in one process, or as one of several: accumulate, clip, step, publish.

Losses are averaged over the whole optimiser step, so neither the micro-batch size nor the mix of long and short answers
inside one changes the result beyond rounding; nor does the number of ranks, of which each is told of all samples and
learns from its share.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.errors import TrainingError
from dojang.protocols import Algorithm, TokenBatch, TokenLoss, WeightStore
from dojang.train import checkpoint
from dojang.train.attention import recompute, see_packed
from dojang.train.config import TrainConfig
from dojang.train.packing import MicroBatch, micro_batches
from dojang.train.policy import Scorer, check_packed
from dojang.train.ranks import ALONE, Ranks
from dojang.train.schedule import learning_rate
from dojang.train.shard import shard, whole
from dojang.train.ulysses import check_heads, part_of
from dojang.types import Group, Metrics, Sample

__all__ = ["TorchTrainer"]

_GAP, _LOST = "actor/logp_gap", 20.0
"""Where tokens have on average become exp(20) times likelier or less likely, nothing is left of the model."""


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
        longest: int,
        temperature: float,
        compute: torch.dtype,
        ranks: Ranks = ALONE,
    ) -> None:
        def scorer(each: PreTrainedModel) -> Scorer:
            see_packed(each)
            check_packed(each)
            check_heads(each.config.num_attention_heads, each.config.num_key_value_heads, ranks.sequence)
            if each is model and config.recompute:
                recompute(each)
            found = Scorer(each, temperature=temperature, compute=compute)
            if ranks.world > 1:
                shard(found, ranks, compute)
            return found

        self._model = model
        self._policy = scorer(model)
        self._reference = None if reference is None else scorer(reference)
        self._ranks = ranks
        self._tokenizer = tokenizer
        self._algorithm = algorithm
        self._weights = weights
        self._config = config
        self._micro_tokens = config.micro_tokens or (8192 if model.device.type == "cuda" else 2048)
        self._total_updates = total_updates
        self._longest = longest
        self._version = 0
        self._optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        samples = [sample for group in groups for sample in group.samples if any(sample.mask)]
        tokens = sum(sample.response_length for sample in samples)
        limit, figures = self._limit(samples) if self._algorithm.needs_limit else (math.inf, {})
        loss, sums, difference = 0.0, defaultdict[str, float](float), _Difference()
        for batch in self._batches(samples):
            found = self._losses(batch, limit, difference)
            share = self._average(found.loss_BT, batch.mask_BT, tokens, len(samples))
            if batch.idle:
                share = share * 0.0
            (share * self._ranks.world).backward()  # type: ignore[no-untyped-call]  # ranks take the mean of gradients
            loss += float(share.detach())
            for name, value_BT in found.figures.items():
                sums[name] += 0.0 if batch.idle else float(value_BT.detach()[batch.mask_BT].sum())
        losses, summed, differences = zip(*self._ranks.gather((loss, dict(sums), difference)), strict=True)
        means = {name: sum(each[name] for each in summed) / tokens for name in sums}
        metrics = {"actor/loss": sum(losses), **means, **figures, **_Difference.metrics(differences)}
        _check_finite(metrics)
        return metrics

    async def optim_step(self) -> Metrics:
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.max_grad_norm)))
        _check_finite({"actor/grad_norm": norm})
        rate = learning_rate(
            self._version,
            peak=self._config.lr,
            warmup=self._config.warmup,
            total=self._total_updates,
            schedule=self._config.schedule,
        )
        for settings in self._optimiser.param_groups:
            settings["lr"] = rate
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._version += 1
        return {"actor/grad_norm": norm, "actor/lr": rate}

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        places = {id(sample): place for place, sample in enumerate(samples)}
        mine: dict[int, tuple[float, ...]] = {}
        with torch.no_grad():
            for batch in self._batches([sample for sample in samples if any(sample.mask)]):
                logp_BT, _ = self._policy(batch)
                for sample, row in zip(batch.samples, logp_BT.tolist(), strict=True):
                    values = iter(row)
                    mine[places[id(sample)]] = tuple(next(values) if chosen else 0.0 for chosen in sample.mask)
        found = {place: values for each in self._ranks.gather(mine) for place, values in each.items()}
        return [found.get(place, (0.0,) * len(sample.tokens)) for place, sample in enumerate(samples)]

    async def publish(self) -> int:
        tensors = {name: whole(tensor.detach()) for name, tensor in self._model.named_parameters()}
        if self._ranks.first:
            self._weights.publish(self._version, tensors)
        return self._version

    async def save(self, path: Path) -> None:
        checkpoint.save_weights(path, self._model, write=self._ranks.first)
        if self._ranks.first:
            self._tokenizer.save_pretrained(path)
        checkpoint.remember(path, self._model, self._optimiser, self._version)

    async def restore(self, path: Path) -> None:
        weights = checkpoint.weights_of(path, self._model)
        self._version = checkpoint.recall(path, self._model, self._optimiser)
        checkpoint.take_up(self._model, weights)

    async def close(self) -> None:
        if self._ranks.world > 1:
            torch.distributed.destroy_process_group()

    def _batches(self, samples: Sequence[Sample]) -> Iterator[MicroBatch]:
        """This rank's share of them; all ranks have equally many."""
        ranks = self._ranks
        for batch in micro_batches(samples, self._micro_tokens, self._model.device, ranks.data, ranks.data_rank):
            yield part_of(batch, ranks)

    def _limit(self, samples: Sequence[Sample]) -> tuple[float, Metrics]:
        """What the algorithm makes of all tokens of this optimiser step."""
        deltas, advantages = [], []
        with torch.no_grad():
            for batch in self._batches(samples):
                logp_BT, _ = self._policy(batch)
                delta_BT = logp_BT - self._old(batch, logp_BT)
                if not batch.idle:
                    deltas.append(delta_BT[batch.mask_BT].cpu())
                    advantages.append(batch.advantage_B[:, None].expand_as(delta_BT)[batch.mask_BT].cpu())
        delta_N, advantage_N = (
            torch.cat([part_N for parts in self._ranks.gather(mine) for part_N in parts]).to(self._model.device)
            for mine in (deltas, advantages)
        )
        return self._algorithm.limit(delta_N, advantage_N)

    def _losses(self, batch: MicroBatch, limit: float, difference: "_Difference") -> TokenLoss:
        """Each token's loss, and figures."""
        logp_BT, entropy_BT = self._policy(batch)
        reference_BT = None
        if self._reference is not None:
            with torch.no_grad():
                reference_BT, _ = self._reference(batch)
        behaviour_BT = batch.behaviour_logp_BT.to(logp_BT.dtype)
        found = self._algorithm.loss(
            TokenBatch(
                logp_BT=logp_BT,
                old_logp_BT=self._old(batch, logp_BT),
                behaviour_logp_BT=behaviour_BT,
                ref_logp_BT=reference_BT,
                advantage_BT=batch.advantage_B[:, None].to(logp_BT.dtype).expand_as(logp_BT),
                mask_BT=batch.mask_BT,
                limit=limit,
            )
        )
        gap_BT = (logp_BT.detach() - behaviour_BT).abs()
        same_B = torch.tensor([sample.version == self._version for sample in batch.samples], device=gap_BT.device)
        if not batch.idle:
            difference.add(gap_BT[batch.mask_BT & same_B[:, None]])
        return replace(found, figures={**found.figures, "actor/entropy": entropy_BT, _GAP: gap_BT})

    def _old(self, batch: MicroBatch, logp_BT: Tensor) -> Tensor:
        if self._algorithm.needs_old and not batch.samples[0].old_logprobs:  # this is the first update
            return logp_BT.detach()
        return batch.old_logp_BT.to(logp_BT.dtype)

    def _average(self, loss_BT: Tensor, mask_BT: Tensor, tokens: int, samples: int) -> Tensor:
        """This micro-batch's share of the mean over an optimiser step of so many tokens and samples."""
        if self._algorithm.average == "tokens":
            return loss_BT.sum() / tokens
        if self._algorithm.average == "sequences":
            return (loss_BT.sum(-1) / mask_BT.sum(-1)).sum() / samples
        return loss_BT.sum() / (samples * self._longest)


@dataclass
class _Difference:
    """How far the engine's log-probs were from ours, where both had the same weights."""

    total: float = 0.0
    most: float = 0.0
    count: int = 0

    def add(self, gap_N: Tensor) -> None:
        if len(gap_N):
            self.total += float(gap_N.sum())
            self.most = max(self.most, float(gap_N.max()))
            self.count += len(gap_N)

    @staticmethod
    def metrics(parts: Sequence["_Difference"]) -> Metrics:
        count = sum(part.count for part in parts)
        if not count:
            return {}
        mean = sum(part.total for part in parts) / count
        return {"actor/logprob_diff/mean": mean, "actor/logprob_diff/max": max(part.most for part in parts)}


def _check_finite(figures: Metrics) -> None:
    bad = sorted(name for name, value in figures.items() if not math.isfinite(value))
    if figures.get(_GAP, 0.0) > _LOST:
        bad.append(f"{_GAP}, {figures[_GAP]:.3g},")
    if bad:
        raise TrainingError(
            f"{', '.join(bad)} became NaN or infinite, or as good as that, so this step was not taken; the last "
            "checkpoint is "
            "untouched. Resume from it with a lower train.lr or train.max_grad_norm, or start again with "
            "model.dtype=float32"
        )
