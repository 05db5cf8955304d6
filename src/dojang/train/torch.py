"""Full fine-tuning in one process: accumulate, clip, step, publish.

Losses are averaged over the whole optimiser step, so neither the micro-batch size nor the mix of long and short answers
inside one changes the result beyond rounding.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dojang.errors import RunDirError, TrainingError
from dojang.protocols import Algorithm, TokenBatch, TokenLoss, WeightStore
from dojang.train.attention import recompute, see_packed
from dojang.train.config import TrainConfig
from dojang.train.critic import Critic
from dojang.train.packing import MicroBatch, micro_batches
from dojang.train.policy import check_packed, token_logprobs
from dojang.train.schedule import learning_rate
from dojang.types import Group, Metrics, Sample

__all__ = ["TorchTrainer"]

OPTIMISER_FILE = "optimiser.pt"
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
        critic: Critic | None = None,
    ) -> None:
        for each in (model, reference):
            if each is not None:
                see_packed(each)
                check_packed(each)
        if config.recompute:
            recompute(model)
        self._model = model
        self._reference = reference
        self._tokenizer = tokenizer
        self._algorithm = algorithm
        self._weights = weights
        self._config = config
        self._micro_tokens = config.micro_tokens or (8192 if model.device.type == "cuda" else 2048)
        self._total_updates = total_updates
        self._longest = longest
        self._temperature = temperature
        self._compute = compute
        self._critic = critic
        self._waits = critic.warmup if critic is not None else 0
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
        if self._critic is not None:
            batches = micro_batches(samples, self._micro_tokens, self._model.device)
            figures = {**figures, **self._critic.backward(batches, tokens)}
            if self._version < self._waits:
                _check_finite(figures)
                return figures
        loss, sums, difference = 0.0, defaultdict[str, float](float), _Difference()
        for batch in micro_batches(samples, self._micro_tokens, self._model.device):
            found = self._losses(batch, limit, difference)
            share = self._average(found.loss_BT, batch.mask_BT, tokens, len(samples))
            share.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
            loss += float(share.detach())
            for name, value_BT in found.figures.items():
                sums[name] += float(value_BT.detach()[batch.mask_BT].sum())
        means = {name: value / tokens for name, value in sums.items()}
        metrics = {"actor/loss": loss, **means, **figures, **difference.metrics()}
        _check_finite(metrics)
        return metrics

    async def optim_step(self) -> Metrics:
        norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.max_grad_norm))
        norms = {"actor/grad_norm": norm, **(self._critic.clip() if self._critic is not None else {})}
        _check_finite(norms)
        rate = learning_rate(
            max(0, self._version - self._waits),
            peak=self._config.lr,
            warmup=self._config.warmup,
            total=self._total_updates - self._waits,
            schedule=self._config.schedule,
        )
        for settings in self._optimiser.param_groups:
            settings["lr"] = rate
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        if self._critic is not None:
            self._critic.step()
        self._version += 1
        return {**norms, "actor/lr": rate}

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return self._of_tokens(samples, lambda batch: self._logprobs(self._model, batch)[0])

    async def appraise(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        assert self._critic is not None, "only to be asked where there is a critic"
        return self._of_tokens(samples, self._critic.values)

    async def publish(self) -> int:
        self._weights.publish(self._version, dict(self._model.named_parameters()))
        return self._version

    async def save(self, path: Path) -> None:
        self._model.save_pretrained(path)
        self._tokenizer.save_pretrained(path)
        torch.save({"version": self._version, "adamw": self._optimiser.state_dict()}, path / OPTIMISER_FILE)
        if self._critic is not None:
            self._critic.save(path)

    async def restore(self, path: Path) -> None:
        try:
            saved = torch.load(path / OPTIMISER_FILE, map_location="cpu", weights_only=True)
            state = AutoModelForCausalLM.from_pretrained(path, dtype=self._model.dtype).state_dict()
            if self._critic is not None:
                self._critic.restore(path)
        except Exception as error:  # torch, safetensors and transformers each have their own for a damaged file
            raise RunDirError(f"checkpoint {path} cannot be read ({error!r}); delete it to fall back") from error
        self._model.load_state_dict(state)
        self._optimiser.load_state_dict(saved["adamw"])
        self._version = saved["version"]

    def _of_tokens(self, samples: Sequence[Sample], told: Callable[[MicroBatch], Tensor]) -> list[tuple[float, ...]]:
        """What is told of the tokens of each micro-batch, sample by sample; 0 for those that were not chosen."""
        found: dict[int, tuple[float, ...]] = {}
        with torch.no_grad():
            some = [sample for sample in samples if any(sample.mask)]
            for batch in micro_batches(some, self._micro_tokens, self._model.device):
                for sample, row in zip(batch.samples, told(batch).tolist(), strict=True):
                    values = iter(row)
                    found[id(sample)] = tuple(next(values) if chosen else 0.0 for chosen in sample.mask)
        return [found.get(id(sample), (0.0,) * len(sample.tokens)) for sample in samples]

    def _limit(self, samples: Sequence[Sample]) -> tuple[float, Metrics]:
        """What the algorithm makes of all tokens of this optimiser step."""
        deltas, advantages = [], []
        with torch.no_grad():
            for batch in micro_batches(samples, self._micro_tokens, self._model.device):
                logp_BT, _ = self._logprobs(self._model, batch)
                delta_BT = logp_BT - self._old(batch, logp_BT)
                deltas.append(delta_BT[batch.mask_BT])
                advantages.append(batch.advantage_BT[batch.mask_BT])
        return self._algorithm.limit(torch.cat(deltas), torch.cat(advantages))

    def _losses(self, batch: MicroBatch, limit: float, difference: "_Difference") -> TokenLoss:
        """Each token's loss, and figures."""
        logp_BT, entropy_BT = self._logprobs(self._model, batch)
        reference_BT = None
        if self._reference is not None:
            with torch.no_grad():
                reference_BT, _ = self._logprobs(self._reference, batch)
        behaviour_BT = batch.behaviour_logp_BT.to(logp_BT.dtype)
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
        same_B = torch.tensor([sample.version == self._version for sample in batch.samples], device=gap_BT.device)
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

    def _logprobs(self, model: PreTrainedModel, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        return token_logprobs(model, batch, temperature=self._temperature, compute=self._compute)


class _Difference:
    """How far the engine's log-probs were from ours, where both had the same weights."""

    def __init__(self) -> None:
        self._sum, self._max, self._count = 0.0, 0.0, 0

    def add(self, gap_N: Tensor) -> None:
        if len(gap_N):
            self._sum += float(gap_N.sum())
            self._max = max(self._max, float(gap_N.max()))
            self._count += len(gap_N)

    def metrics(self) -> Metrics:
        if not self._count:
            return {}
        return {"actor/logprob_diff/mean": self._sum / self._count, "actor/logprob_diff/max": self._max}


def _check_finite(figures: Metrics) -> None:
    bad = sorted(name for name, value in figures.items() if not math.isfinite(value))
    if figures.get(_GAP, 0.0) > _LOST:
        bad.append(f"{_GAP}, {figures[_GAP]:.3g},")
    if bad:
        rate = "train.critic.lr" if any(name.startswith("critic/") for name in bad) else "train.lr"
        raise TrainingError(
            f"{', '.join(bad)} became NaN or infinite, or as good as that, so this step was not taken; the last "
            "checkpoint is "
            f"untouched. Resume from it with a lower {rate} or train.max_grad_norm, or start again with "
            "model.dtype=float32"
        )
