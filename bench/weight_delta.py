"""Size and speed of weight packs: deltas and LoRA factors beside full weights.

A model is trained for some steps of AdamW at the given learning rates, on short answers with random rewards. Each
version is published, packed, sent over a TCP connection of this machine, decoded and applied. Rates count the bytes of
the full weights, so that they can be compared: what a delta need not send counts as sent. Work on a CPU is measured in
seconds of one core, so that other processes do not matter; sending in seconds.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import TypeVar, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.grpo import GrpoConfig
from dojang.protocols import ServingEngine
from dojang.trainer.config import TrainConfig
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group, Message, Outcome, Problem, Sample, Verdict
from dojang.weight_sync.pack import Pack, decode, encode
from dojang.weight_sync.pack_receiver import LoraBase, apply_pack
from dojang.weight_sync.versions import WeightVersions
from machine import Row, arguments, report
from shapes import load
from weight_soak import DictEngine

T = TypeVar("T")
LORA_RANK = 16


class KnownEngine(DictEngine):
    """Knows the checksum of its last update, as the torch engine does."""

    def __init__(self, store: WeightVersions) -> None:
        super().__init__({name: each.clone() for name, each in store.fetch(0).items()})
        self._store = store

    async def checksum(self) -> str:
        return self._store.checksum(self.version)


@dataclass(frozen=True)
class Cost:
    """Size and seconds of one update on its way from the trainer to an engine."""

    size: int
    publish: float
    encode: float
    send: float
    apply: float


def timed(work: Callable[[], T], clock: Callable[[], float] = time.process_time) -> tuple[T, float]:
    started = clock()
    found = work()
    return found, clock() - started


def send(data: bytes) -> bytearray:
    """Send data over TCP to another thread of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(data)

        sender = threading.Thread(target=serve)
        sender.start()
        received = bytearray(len(data))
        with socket.create_connection(server.getsockname()) as client:
            view, at = memoryview(received), 0
            while at < len(data):
                at += client.recv_into(view[at:])
        sender.join()
    return received


def deliver(pack: Callable[[], Pack], engine: DictEngine, publish: float, lora_base: LoraBase | None = None) -> Cost:
    """Bring a pack to an engine, and check that it holds the version afterwards."""
    data, encoding = timed(lambda: encode(pack()))
    received, sending = timed(lambda: send(data), time.perf_counter)
    _, applying = timed(lambda: asyncio.run(apply_pack(cast(ServingEngine, engine), decode(received), lora_base)))
    return Cost(len(data), publish, encoding, sending, applying)


def groups(tokenizer: PreTrainedTokenizerBase, seed: int, count: int = 4) -> list[Group]:
    """Sums with right and wrong answers; rewards are random."""
    draw, problem, told = Random(seed), Problem("", "", (Message("user", ""),), None), Verdict(Outcome.WRONG, 0.0)

    def sample() -> Sample:
        one, two = draw.randrange(100), draw.randrange(100)
        prompt = tokenizer.encode(f"Tom has {one} apples and buys {two} more. How many apples does he have now?")
        answer = tokenizer.encode(f" Tom has {one} + {two} = {one + two + draw.choice((0, 0, 1, -10))} apples now.")
        mask = (False,) * len(prompt) + (True,) * len(answer)
        logprobs = (0.0,) * len(prompt) + (-2.0,) * len(answer)
        return Sample((*prompt, *answer), mask, logprobs, "", "stop", 0, told, advantage=draw.uniform(-1, 1))

    return [Group(problem, place, (sample(), sample())) for place in range(count)]


def trainer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lr: float, steps: int) -> TorchTrainer:
    return TorchTrainer(
        model,
        None,
        tokenizer,
        GrpoConfig().make(max_tokens=256),
        WeightVersions(torch.bfloat16),
        TrainConfig(lr=lr),
        total_updates=steps,
        max_tokens=256,
        temperature=1.0,
        compute=torch.float32,
    )


def measure(name: str, lr: float, steps: int) -> tuple[list[Cost], list[Cost], float]:
    """Costs of full weights and of deltas, and the share of elements that changed."""
    model, tokenizer = load(name, torch.float32, "cpu")
    learner = trainer(model, tokenizer, lr, steps)
    plain, store = WeightVersions(torch.bfloat16), WeightVersions(torch.bfloat16, 2, deltas=1)
    store.publish(0, weights := {name: each.detach() for name, each in model.named_parameters()})
    store.checksum(0)
    engine = KnownEngine(store)
    full, deltas, changed = list[Cost](), list[Cost](), list[float]()
    for version in range(1, steps + 1):
        asyncio.run(_step(learner, groups(tokenizer, version)))
        _, copying = timed(lambda version=version: plain.publish(version, weights))
        _, comparing = timed(lambda version=version: store.publish(version, weights))
        deltas.append(deliver(lambda version=version: store.pack(version, version - 1), engine, comparing))
        _check(engine, store, version)
        full.append(deliver(lambda version=version: plain.pack(version), engine, copying))
        _check(engine, store, version)
        found = store.changes(version - 1, version)
        assert found is not None
        count = sum(each.numel() for each in found.tensors.values()) + sum(len(each.index_N) for each in found.patches)
        changed.append(count / sum(each.numel() for each in weights.values()))
    return full, deltas, median(changed)


async def _step(learner: TorchTrainer, samples: Sequence[Group]) -> None:
    await learner.forward_backward(samples)
    await learner.optim_step()


def _check(engine: DictEngine, store: WeightVersions, version: int) -> None:
    assert engine.version == version
    assert all(torch.equal(engine.weights[name], each) for name, each in store.fetch(version).items())


def measure_factors(name: str) -> tuple[Cost, Cost]:
    """Costs of full weights with LoRA factors of all projections, and of the factors alone."""
    model, _ = load(name, torch.float32, "cpu")
    weights = {name: each.detach() for name, each in model.named_parameters()}
    draw = torch.Generator().manual_seed(0)

    def factors() -> dict[str, tuple[Tensor, Tensor]]:
        shapes = {name: each.shape for name, each in weights.items() if "_proj" in name}
        return {
            name: (
                torch.randn(rows, LORA_RANK, generator=draw) * 1e-3,
                torch.randn(LORA_RANK, columns, generator=draw) * 1e-2,
            )
            for name, (rows, columns) in shapes.items()
        }

    store, base = WeightVersions(torch.bfloat16), LoraBase()
    engine = DictEngine({name: each.to(torch.bfloat16) for name, each in weights.items()})
    first = factors()
    _, copying = timed(lambda: store.publish(0, weights, first))
    full = deliver(lambda: store.pack(0), engine, copying, base)
    second = factors()
    _, adding = timed(lambda: store.publish(1, {}, second))
    alone = deliver(lambda: store.pack(1, 0), engine, adding, base)
    _check(engine, store, 1)
    return full, alone


def rows(case: str, subject: str, full: Sequence[Cost], other: Sequence[Cost], notes: str) -> list[Row]:
    """Compare medians."""

    def middle(costs: Sequence[Cost], value: Callable[[Cost], float]) -> float:
        return median(value(each) for each in costs)

    weights = middle(full, lambda each: each.size)
    found = []
    sizes = [middle(each, lambda cost: cost.size / 1e6) for each in (other, full)]
    found.append(Row(f"{case}: size", subject, "full weights", *sizes, "MB", sizes[1] / sizes[0], notes))
    parts: dict[str, Callable[[Cost], float]] = {
        "publish and encode": lambda cost: cost.publish + cost.encode,
        "send over TCP": lambda cost: cost.send,
        "decode and apply": lambda cost: cost.apply,
        "all": lambda cost: cost.publish + cost.encode + cost.send + cost.apply,
    }
    for part, value in parts.items():
        rates = [weights / 1e9 / middle(each, value) for each in (other, full)]
        found.append(Row(f"{case}: {part}", subject, "full weights", *rates, "GB/s", rates[0] / rates[1]))
    for gigabits in (1, 10):
        computing = [middle(each, lambda cost: cost.publish + cost.encode + cost.apply) for each in (other, full)]
        times = [seconds + size * 8e-3 / gigabits for seconds, size in zip(computing, sizes, strict=True)]
        found.append(
            Row(f"{case}: computed for {gigabits} Gbit/s", subject, "full weights", *times, "s", times[1] / times[0])
        )
    return found


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name or directory of a model")
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-6, 1e-5])
    parser.add_argument("--steps", type=int, default=4)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: list[Row] = []
    for lr in asked.lr:
        full, deltas, changed = measure(asked.model, lr, asked.steps)
        found += rows(f"{asked.model}, lr {lr:g}", "delta", full, deltas, f"{changed:.2%} of the elements changed")
    full_lora, alone = measure_factors(asked.model)
    notes = f"rank {LORA_RANK}, all projections"
    found += rows(f"{asked.model}, LoRA", "factors", [full_lora], [alone], notes)
    report("weight_delta", found, asked.json)


if __name__ == "__main__":
    main()
