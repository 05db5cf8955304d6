"""LoRA on rollout workers: after the full base weights they get factors alone, merge them on their own device, and
sample with the weights of the trainer. On a GPU too, if this machine has one."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.grpo import GrpoConfig
from dojang.core.checksum import checksum
from dojang.engine.torch_engine import TorchEngine
from dojang.trainer.config import LoraConfig, TrainConfig
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Completion, Group, Outcome, Problem, Sample, Sampling, Verdict
from dojang.weight_sync.pack import decode, encode
from dojang.weight_sync.pack_receiver import PackReceiver
from dojang.weight_sync.versions import WeightVersions

pytest.importorskip("peft")

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
PLACES = [
    pytest.param(torch.device("cpu"), torch.float32, id="cpu-float32"),
    pytest.param(torch.device("cuda"), torch.float32, id="cuda-float32", marks=CUDA),
    pytest.param(torch.device("cuda"), torch.bfloat16, id="cuda-bfloat16", marks=CUDA),
]
BOUND = {torch.float32: (2e-4, 2e-5), torch.bfloat16: (0.1, 0.02)}
"""Largest and mean difference of log-probs from other kernels with the same weights."""
VERSIONS = 3
PROMPTS = [tuple(range(10 + at, 30 + 2 * at)) for at in range(4)]
SAMPLING = Sampling(temperature=1.0, max_tokens=32, seed=5)


def make_model(device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.05,
    )
    return LlamaForCausalLM(config).eval().to(device, dtype)


def make_trainer(
    device: torch.device, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase, store: WeightVersions
) -> TorchTrainer:
    return TorchTrainer(
        make_model(device, dtype),
        None,
        tokenizer,
        GrpoConfig().make(max_tokens=SAMPLING.max_tokens),
        store,
        TrainConfig(lr=2e-2, lora=LoraConfig(rank=8, alpha=16, publish="factors")),
        total_updates=VERSIONS,
        max_tokens=SAMPLING.max_tokens,
        temperature=1.0,
        compute=dtype,
    )


def make_engine(
    device: torch.device, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase, weights: Any
) -> TorchEngine:
    return TorchEngine(make_model(device, dtype), tokenizer, weights, max_num_seqs=8, kv_cache_gb=0.1, dtype=dtype)


async def sample(engine: TorchEngine) -> list[list[Completion]]:
    return await asyncio.gather(*(engine.generate(prompt, 2, SAMPLING) for prompt in PROMPTS))


def groups_of(problem: Problem, answers: list[list[Completion]]) -> list[Group]:
    return [
        Group(
            problem,
            at,
            tuple(
                replace(Sample.of(prompt, each, Verdict(Outcome.WRONG, 0.0), index), advantage=(-1.0) ** index)
                for index, each in enumerate(found)
            ),
        )
        for at, (prompt, found) in enumerate(zip(PROMPTS, answers, strict=True))
    ]


def logprobs(model: PreTrainedModel, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
    """Log-probs of a completion, by transformers."""
    ids = torch.tensor([[*prompt, *tokens]], device=model.device)
    with torch.no_grad():
        logp = model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return logp.gather(-1, ids[0, len(prompt) :, None]).squeeze(-1).cpu()


class TcpWorker:
    """Gets weights as a rollout worker does, also one on Ray."""

    def __init__(self, device: torch.device, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase) -> None:
        self.engine = make_engine(device, dtype, tokenizer, WeightVersions(dtype))
        self._receiver = PackReceiver(self.engine, device)

    async def load(self, store: WeightVersions, version: int) -> str:
        """Loads a version and returns the kind of the pack."""
        kinds = []

        async def fetch(base: int | None, merge: bool) -> bytes:
            data = bytes(encode(store.pack(version, base, merge=merge)))
            kinds.append(decode(data).kind)
            return data

        await self._receiver.load(version, fetch)
        (kind,) = kinds  # a second one would mean that the factors became other weights here
        return kind


class RayEngineActor:
    """Gets weights as an engine on Ray does (runtime.engines)."""

    def __init__(self, device: torch.device, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase) -> None:
        pytest.importorskip("ray")
        from dojang.cluster.ray.engines import Sampler
        from dojang.cluster.ray.object_store import ReceivedWeights

        self._weights = ReceivedWeights(device)
        self.engine = make_engine(device, dtype, tokenizer, self._weights)
        self._sampler = Sampler(self.engine, self._weights)

    async def load(self, store: WeightVersions, version: int) -> str:
        """Loads a version and returns the kind of the pack."""
        pack = store.factors(version)
        assert pack is not None
        data, kind = bytes(encode(pack)), "factors"
        if not self._weights.lora_base.fits(pack):  # the base weights come from the object store, in main memory
            self._weights.lora_base.hold({name: each.cpu() for name, each in store.pack(version).tensors.items()})
            kind = "full"
        taken, _ = await self._sampler.load_factors(version, data)
        assert taken
        return kind


@pytest.mark.parametrize("make_worker", [TcpWorker, RayEngineActor])
@pytest.mark.parametrize(("device", "dtype"), PLACES)
def test_a_worker_merges_factors_and_samples_as_the_merged_model(
    device: torch.device,
    dtype: torch.dtype,
    make_worker: type[TcpWorker] | type[RayEngineActor],
    tokenizer: PreTrainedTokenizerBase,
    problem: Problem,
) -> None:
    store = WeightVersions(dtype, keep=2)
    trainer = make_trainer(device, dtype, tokenizer, store)
    worker = make_worker(device, dtype, tokenizer)
    beside = make_engine(device, dtype, tokenizer, store)  # in the trainer's process

    async def play() -> tuple[list[str], list[list[Completion]], list[list[Completion]]]:
        kinds = []
        try:
            for version in range(VERSIONS + 1):
                await trainer.publish(version)
                kinds.append(await worker.load(store, version))
                assert await worker.engine.checksum() == checksum(store.fetch(version))
                answers = await sample(worker.engine)
                if version < VERSIONS:
                    await trainer.forward_backward(groups_of(problem, answers))
                    await trainer.optim_step()
            await beside.load(VERSIONS)
            return kinds, answers, await sample(beside)
        finally:
            await worker.engine.close()
            await beside.close()

    kinds, answers, same = asyncio.run(play())
    assert kinds == ["full"] + ["factors"] * VERSIONS
    assert {span.version for found in answers for each in found for span in each.spans} == {VERSIONS}
    if device.type == "cpu":
        assert answers == same  # bit for bit
    merged, base = make_model(device, dtype), make_model(device, dtype)
    merged.load_state_dict(store.fetch(VERSIONS), strict=False)
    check_logprobs(BOUND[dtype], answers, merged, base, scores(trainer, groups_of(problem, answers)))


def scores(trainer: TorchTrainer, groups: list[Group]) -> list[torch.Tensor]:
    """Log-probs of the completions by the trainer, whose adapters are not merged."""
    samples = [each for group in groups for each in group.samples]
    found = asyncio.run(trainer.score(samples))
    return [torch.tensor(each)[torch.tensor(sample.mask)] for each, sample in zip(found, samples, strict=True)]


def check_logprobs(
    bound: tuple[float, float],
    answers: list[list[Completion]],
    merged: PreTrainedModel,
    base: PreTrainedModel,
    scored: list[torch.Tensor],
) -> None:
    pairs = [(prompt, each) for prompt, found in zip(PROMPTS, answers, strict=True) for each in found]
    own = torch.tensor([value for _, each in pairs for value in each.logprobs])

    def gap(others: list[torch.Tensor]) -> torch.Tensor:
        return (own - torch.cat(others)).abs()

    for others in ([logprobs(merged, prompt, each.tokens) for prompt, each in pairs], scored):
        assert float(gap(others).max()) < bound[0]
        assert float(gap(others).mean()) < bound[1]
    changed = float(gap([logprobs(base, prompt, each.tokens) for prompt, each in pairs]).mean())
    assert changed > 3 * bound[1], "the factors change too little for this test"
