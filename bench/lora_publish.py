"""Memory and time of weight sync with LoRA: each weight merged while the engine reads it, beside all merged first.

Counts what a publication and the load that follows need beyond trainer and engine at the peak, with the version that is
held from before: on a GPU in torch's allocator, on a CPU in the resident memory, whose peak Linux can reset.
"""

import asyncio
import gc
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from transformers import Qwen2Config

import shapes
from dojang.algos.grpo import GrpoConfig
from dojang.engine.torch_engine import TorchEngine
from dojang.trainer.config import LoraConfig, TrainConfig
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.weight_sync.versions import WeightVersions
from machine import Row, arguments, report

MIB = 2**20
shapes.RANDOM["random-0.5b"] = shapes.QWEN25_05B
shapes.RANDOM["random-7b"] = Qwen2Config(
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    tie_word_embeddings=False,
    **shapes.COMMON,
)


@dataclass(frozen=True)
class Cost:
    """Of one weight sync."""

    mib: float
    seconds: float
    pause: float
    """Seconds in which the engine cannot decode."""


class PublishesAtOnce(WeightVersions):
    """A weight store that copies a version of weights which were all merged first."""

    def publish(self, version: int, tensors, factors=None, checksum=""):  # type: ignore[no-untyped-def]
        super().publish(version, dict(tensors))


def measure(name: str, device: str, dtype: torch.dtype, *, at_once: bool, rounds: int) -> Cost:
    """Medians over the weight syncs after the first."""
    model, tokenizer = shapes.load(name, dtype, device)
    store = (PublishesAtOnce if at_once else WeightVersions)(dtype)
    engine = TorchEngine(model, tokenizer, store, max_num_seqs=1, kv_cache_gb=0.01)
    trainer = TorchTrainer(
        model,
        None,
        tokenizer,
        GrpoConfig().make(max_tokens=9),
        store,
        TrainConfig(lora=LoraConfig()),
        total_updates=9,
        max_tokens=9,
        temperature=1.0,
        compute=dtype,
    )

    async def play() -> list[Cost]:
        gc.collect()
        before, costs = _now(device), list[Cost]()
        for version in range(rounds + 1):
            _reset_peak(device)
            started = time.perf_counter()
            await trainer.publish(version)
            figures = await engine.load(version)
            seconds = time.perf_counter() - started
            costs.append(Cost(_peak(device) - before, seconds, figures["timing_s/load_pause"]))
        await engine.close()
        return costs[1:]

    costs = asyncio.run(play())
    return Cost(*(median(getattr(each, field) for each in costs) for field in ("mib", "seconds", "pause")))


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() / MIB
    return _status("VmRSS")


def _reset_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def _peak(device: str) -> float:
    return torch.cuda.max_memory_allocated() / MIB if device == "cuda" else _status("VmHWM")


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def rows(name: str, streamed: Cost, at_once: Cost, model: float) -> list[Row]:
    """Compare both ways."""

    def row(case: str, value: float, other: float, unit: str, notes: str = "") -> Row:
        return Row(f"{name}: {case}", "merged one by one", "all merged first", value, other, unit, other / value, notes)

    return [
        row("peak memory", streamed.mib, at_once.mib, "MiB", f"the model has {model:,.0f} MiB"),
        row("weight sync", streamed.seconds, at_once.seconds, "s"),
        row("of it without decoding", streamed.pause, at_once.pause, "s"),
    ]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument(
        "--model", default="random-135m", help="name or directory of a model, or random-7b, random-0.5b"
    )
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    at_once, streamed = (
        measure(asked.model, device, torch.bfloat16, at_once=each, rounds=asked.rounds) for each in (True, False)
    )
    with torch.device("meta"):
        model, _ = shapes.load(asked.model, torch.bfloat16, "meta")
    size = sum(each.numel() for each in model.parameters()) * 2 / MIB
    report("lora_publish", rows(asked.model, streamed, at_once, size), asked.json)


if __name__ == "__main__":
    main()
