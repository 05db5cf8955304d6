"""Full fine-tuning in one process: accumulate, clip, step, publish.

The loss is divided by the number of trained tokens of the whole optimiser step, so neither the micro-batch
size nor the mix of long and short answers inside one changes the result beyond rounding.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dojang.errors import RunDirError, TrainingError
from dojang.protocols import Algorithm, TokenBatch, WeightStore
from dojang.train.batching import MicroBatch, micro_batches
from dojang.train.config import TrainConfig
from dojang.train.policy import token_logprobs
from dojang.train.schedule import learning_rate
from dojang.types import Group, Metrics, Sample

__all__ = ["TorchTrainer"]

OPTIMISER_FILE = "optimiser.pt"


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
        temperature: float,
        compute: torch.dtype,
    ) -> None:
        self._model = model
        self._reference = reference
        self._tokenizer = tokenizer
        self._algorithm = algorithm
        self._weights = weights
        self._config = config
        self._total_updates = total_updates
        self._temperature = temperature
        self._compute = compute
        self._version = 0
        self._optimiser = torch.optim.AdamW(
            model.parameters(), lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
        )

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        samples = [sample for group in groups for sample in group.samples]
        tokens = sum(sample.response_length for sample in samples)
        sums: defaultdict[str, float] = defaultdict(float)
        difference = _Difference()
        for batch in micro_batches(samples, self._config.micro_tokens, self._model.device):
            for name, value in self._accumulate(batch, tokens, difference):
                sums[name] += value
        means = {**{name: value / tokens for name, value in sums.items()}, **difference.metrics()}
        _check_finite(means)
        return means

    async def optim_step(self) -> Metrics:
        norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.max_grad_norm))
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
        found: dict[int, tuple[float, ...]] = {}
        with torch.no_grad():
            for batch in micro_batches(samples, self._config.micro_tokens, self._model.device):
                logp_BT, _ = self._logprobs(self._model, batch)
                before = batch.tokens_BT.shape[1] - batch.kept
                for sample, row in zip(batch.samples, logp_BT.masked_fill(~batch.mask_BT, 0.0).tolist(), strict=True):
                    found[id(sample)] = ((0.0,) * before + tuple(row))[: len(sample.tokens)]
        return [found[id(sample)] for sample in samples]

    async def publish(self) -> int:
        self._weights.publish(self._version, dict(self._model.named_parameters()))
        return self._version

    async def save(self, path: Path) -> None:
        self._model.save_pretrained(path)
        self._tokenizer.save_pretrained(path)
        torch.save({"version": self._version, "adamw": self._optimiser.state_dict()}, path / OPTIMISER_FILE)

    async def restore(self, path: Path) -> None:
        try:
            saved = torch.load(path / OPTIMISER_FILE, map_location="cpu", weights_only=True)
            state = AutoModelForCausalLM.from_pretrained(path, dtype=self._model.dtype).state_dict()
        except Exception as error:  # torch, safetensors and transformers each have their own for a damaged file
            raise RunDirError(f"checkpoint {path} cannot be read ({error!r}); delete it to fall back") from error
        self._model.load_state_dict(state)
        self._optimiser.load_state_dict(saved["adamw"])
        self._version = saved["version"]

    def _accumulate(self, batch: MicroBatch, tokens: int, difference: "_Difference") -> Iterator[tuple[str, float]]:
        """Add one micro-batch's share of the gradient; yields its per-token sums."""
        logp_BT, entropy_BT = self._logprobs(self._model, batch)
        reference_BT = None
        if self._reference is not None:
            with torch.no_grad():
                reference_BT, _ = self._logprobs(self._reference, batch)
        result = self._algorithm.loss(
            TokenBatch(
                logp_BT=logp_BT,
                old_logp_BT=batch.old_logp_BT.to(logp_BT.dtype),
                ref_logp_BT=reference_BT,
                advantage_B=batch.advantage_B.to(logp_BT.dtype),
                mask_BT=batch.mask_BT,
            )
        )
        loss = result.loss_BT.sum()
        (loss / tokens).backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
        yield "actor/loss", float(loss.detach())
        gap_BT = (logp_BT.detach() - batch.old_logp_BT.to(logp_BT.dtype)).abs()
        same_B = torch.tensor([sample.version == self._version for sample in batch.samples], device=gap_BT.device)
        difference.add(gap_BT[batch.mask_BT & same_B[:, None]])
        for name, value_BT in {**result.figures, "actor/entropy": entropy_BT, "actor/logp_gap": gap_BT}.items():
            yield name, float(value_BT.detach()[batch.mask_BT].sum())

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
    if bad:
        raise TrainingError(
            f"{', '.join(bad)} became NaN or infinite, so this step was not taken; the last checkpoint is "
            "untouched. Resume from it with a lower train.lr or train.max_grad_norm, or start again with "
            "model.dtype=float32"
        )
