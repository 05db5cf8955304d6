"""rollout.engine.quantization=fp8 beside the same engine without it: log-probs, and tokens per second.

    python bench/fp8.py --model smollm2-135m-instruct --data data/gsm8k --samples 1,8,64

The first `--prompts` questions of GSM8K are answered, each with `--samples` samples at a time. The log-probs that the
engine gives are compared with those of a forward pass of the unquantized weights in float32, on the same tokens: their
mean distance, and in the notes the largest, the mean importance ratio, which would be 1 of equal policies, and the
share of tokens whose ratio lies outside 0.8 to 1.2, where PPO would clip, with FP8 and without. Rounds are interleaved;
the median speed counts.
"""

import asyncio
import statistics
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.engine.torch_engine import TorchEngine
from dojang.types import Completion, Sampling
from dojang.weight_sync.versions import WeightVersions
from gsm8k_samples import add_options, gsm8k_prompts, pretrained, timed_samples
from machine import Row, arguments, numbers, report
from shapes import fast_dtype

Quantization = Literal["none", "fp8"]
Sampled = list[tuple[tuple[int, ...], Completion]]
"""Prompts and samples."""


@dataclass(frozen=True)
class Round:
    """Samples of one round, and the seconds they took."""

    seconds: float
    found: Sampled

    @property
    def speed(self) -> float:
        return sum(len(each.tokens) for _, each in self.found) / self.seconds


def play(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[tuple[int, ...]],
    max_tokens: int,
    samples: int,
    quantization: Quantization,
) -> Round:
    """Samples every prompt `samples` times, one prompt after the other."""
    weights = WeightVersions(model.dtype)
    engine = TorchEngine(model, tokenizer, weights, max_num_seqs=samples, kv_cache_gb=2.0, quantization=quantization)
    groups, seconds = asyncio.run(timed_samples(engine, prompts, Sampling(1.0, max_tokens), samples))
    found = [(prompt, each) for prompt, group in zip(prompts, groups, strict=True) for each in group]
    return Round(seconds, found)


def log_ratios(model: PreTrainedModel, found: Sampled) -> Tensor:
    """Log-probs of a model's forward pass less those of the engine, of all tokens."""
    ratios = []
    for prompt, sample in found:
        ids = torch.tensor([prompt + sample.tokens], device=model.device)
        with torch.no_grad():
            logits_TV = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        chosen_T = logits_TV.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0]
        ratios.append(chosen_T.cpu().double() - torch.tensor(sample.logprobs, dtype=torch.float64))
    return torch.cat(ratios)


def agreement_row(fp8: Tensor, plain: Tensor) -> Row:
    """The mean distance of log-probs from the policy that is trained; a ratio below 1 means that FP8 is farther."""
    distances = float(fp8.abs().mean()), float(plain.abs().mean())
    return Row(
        "log-probs beside float32",
        "fp8",
        "none",
        distances[0],
        distances[1],
        "nats",
        distances[1] / distances[0],
        f"largest {fp8.abs().max():.2f}, mean ratio {fp8.exp().mean():.4f}, {share_outside(fp8):.1%} of {len(fp8):,} "
        f"tokens outside 0.8 to 1.2, none: {share_outside(plain):.1%} of {len(plain):,}",
    )


def share_outside(log_ratio: Tensor) -> float:
    """Share of tokens whose importance ratio lies outside 0.8 to 1.2."""
    ratio = log_ratio.exp()
    return float(((ratio < 0.8) | (ratio > 1.2)).double().mean())


def speed_row(samples: int, fp8: list[Round], plain: list[Round]) -> Row:
    """The median round of both."""
    speeds = [statistics.median(each.speed for each in rounds) for rounds in (fp8, plain)]
    case = f"{samples} sample{'s' * (samples > 1)} at a time"
    return Row(case, "fp8", "none", speeds[0], speeds[1], "tok/s", speeds[0] / speeds[1])


def main() -> None:
    parser = arguments(__doc__)
    add_options(parser)
    parser.add_argument("--samples", type=numbers, default=[8], help="samples of a prompt, N,...")
    options = parser.parse_args()
    model, tokenizer = pretrained(options.model, fast_dtype(options.device), options.device)
    prompts = gsm8k_prompts(options.data, tokenizer, options.prompts, options.max_tokens)
    choices: tuple[Quantization, ...] = ("none", "fp8")
    rows = []
    for samples in options.samples:
        rounds = [
            {each: play(model, tokenizer, prompts, options.max_tokens, samples, each) for each in choices}
            for _ in range(options.rounds)
        ]
        rows.append(speed_row(samples, [each["fp8"] for each in rounds], [each["none"] for each in rounds]))
    wide, _ = pretrained(options.model, torch.float32, options.device)
    fp8, plain = (log_ratios(wide, rounds[0][each].found) for each in ("fp8", "none"))
    report("fp8", [agreement_row(fp8, plain), *rows], options.json)


if __name__ == "__main__":
    main()
