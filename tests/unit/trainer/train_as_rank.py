"""What test_process_group.py has several processes do, and does alone to compare: torchrun ... train_as_rank.py FOLDER.

Every case is two optimizer steps of one model on the same samples.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from dojang import models
from dojang.algos.grpo import GrpoConfig
from dojang.algos.gspo import GspoConfig
from dojang.algos.importance_correction import TokenTis
from dojang.algos.m2po import M2poConfig
from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.ppo import PpoConfig
from dojang.trainer.config import CriticConfig, LoraConfig, TrainConfig
from dojang.trainer.critic import Critic
from dojang.trainer.fsdp import full_tensor
from dojang.trainer.process_group import ProcessGroup, join_process_group
from dojang.trainer.quantization import load_quantised
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group, Message, Outcome, Problem, Sample, Verdict
from dojang.weight_sync.versions import WeightVersions
from error_bounds import in_double

EPSILON = 1e-2
"""Of AdamW, as large as the learning rate: lr g / (|g| + eps) then differs by no more than the gradients g do. With the
usual 1e-8 it is a million times as much where g is nearly zero, and rounding errors decide."""

CASES: Mapping[str, tuple[PolicyGradientConfig, dict[str, Any]]] = {
    "grpo": (GrpoConfig(kl_coef=0.1), {}),
    "m2po": (M2poConfig(threshold=0.01), {"max_tokens_per_microbatch": 40}),
    "gspo, tis": (GspoConfig(corrections=(TokenTis(),)), {"max_tokens_per_microbatch": 30}),
    "entropy, refresh": (
        GrpoConfig(kl_coef=0.1, use_bias_correction_kl=True, entropy={"coef": 0.05, "target": 9.0}),
        {"max_tokens_per_microbatch": 30, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.5},
    ),
    "recompute": (
        GrpoConfig(loss_aggregation="sequences"),
        {"gradient_checkpointing": True, "max_tokens_per_microbatch": 25},
    ),
    "recompute one layer": (
        GrpoConfig(kl_coef=0.1),
        {"gradient_checkpointing": 1, "lora": LoraConfig(rank=4), "max_tokens_per_microbatch": 25},
    ),
    "lora": (GrpoConfig(kl_coef=0.1), {"lora": LoraConfig(rank=4)}),
    "lora factors": (GrpoConfig(kl_coef=0.1), {"lora": LoraConfig(rank=4, publish="factors")}),
    "modules_to_save": (GrpoConfig(kl_coef=0.1), {"lora": LoraConfig(rank=4, modules_to_save=("lm_head",))}),
    "ppo": (PpoConfig(), {"max_tokens_per_microbatch": 30, "critic": CriticConfig(lr=1e-2)}),
    "qlora": (
        GrpoConfig(kl_coef=0.1),
        {
            "lora": LoraConfig(rank=4, base_bits=4),
            "max_tokens_per_microbatch": 40,
            "gradient_checkpointing": 1,
        },
    ),
}


def make(algo: PolicyGradientConfig, settings: Mapping[str, Any], ranks: ProcessGroup) -> TorchTrainer:
    tokenizer = AutoTokenizer.from_pretrained(models.resolve("dojang-tiny"))

    def model(seed: int, *, tied: bool = False) -> PreTrainedModel:
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
            initializer_range=0.2,
        )
        return in_double(LlamaForCausalLM(config).double().eval())

    lora = settings.get("lora")
    policy, compute = model(0, tied=True), torch.float64
    if lora and lora.base_bits == 4:
        compute = torch.float32  # bitsandbytes knows nothing more precise
        with tempfile.TemporaryDirectory() as folder:
            policy.config.to_json_file(f"{folder}/config.json")  # save_pretrained is for the first rank only
            save_file(dict(policy.named_parameters()), f"{folder}/model.safetensors", metadata={"format": "pt"})
            policy = load_quantised(folder, compute, torch.device("cpu"))
    algorithm, config = algo.make(max_tokens=12), TrainConfig(lr=1e-2, eps=EPSILON, weight_decay=0.1, **settings)
    critic = None
    if algorithm.requirements.critic:
        critic = Critic(model(2), algorithm, config, compute=compute, ranks=ranks)
    return TorchTrainer(
        policy,
        model(1, tied="ref_model_sync_steps" in settings) if algo.kl_coef and config.needs_reference_model else None,
        tokenizer,
        algorithm,
        WeightVersions(torch.float64),
        config,
        total_updates=10,
        max_tokens=12,
        temperature=0.8,
        compute=compute,
        critic=critic,
        ranks=ranks,
        token_values=True,
    )


def groups() -> list[Group]:
    """Four of ragged samples: two share a prompt, one has a single sample, and in one all advantages are 0."""
    draw = torch.Generator().manual_seed(0)

    def numbers(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(5, 290, (count,), generator=draw).tolist())

    def sample(prompt: tuple[int, ...], index: int, size: int, advantage: float) -> Sample:
        mask = (False,) * len(prompt) + (True,) * size
        near = tuple(-6.0 + 0.1 * place if chosen else 0.0 for place, chosen in enumerate(mask))
        verdict = Verdict(Outcome.WRONG, 0.0)
        hoped = tuple(0.1 * place * chosen for place, chosen in enumerate(mask))
        more = {
            "index": index,
            "values": hoped,
            "returns": tuple(advantage * each + 0.3 * bool(each) for each in hoped),
        }
        return Sample(prompt + numbers(size), mask, near, "", "stop", 0, verdict, advantage=advantage, **more)

    problem = Problem("p", "test", (Message("user", "?"),), None)
    made = []
    for prompt_index, sizes in enumerate(((1, 7, 12, 3), (9, 2, 5), (6,), (4, 8))):
        prompt, scale = numbers(4 + 3 * prompt_index), 0.5 * (prompt_index < 3)
        samples = [
            sample(prompt, place, size, scale * (-1.0) ** place * (place + 1)) for place, size in enumerate(sizes)
        ]
        made.append(Group(problem, prompt_index, tuple(samples)))
    return made


def play(case: str, ranks: ProcessGroup) -> dict[str, Any]:
    """All that must not depend on the number of ranks."""
    trainer = make(*CASES[case], ranks)
    found, recorded = [], []
    for _ in range(2):
        found.append(steps(trainer))
        recorded += asyncio.run(trainer.take_token_values())
    samples = [sample for group in groups() for sample in group.samples]
    scores = asyncio.run(trainer.score(samples))
    if trainer._reference is not None:
        scores += asyncio.run(trainer.ref_logprobs(samples))
    if trainer._critic is not None:
        scores += asyncio.run(trainer.compute_values(samples))
    values = [[*each.logprobs.tolist(), *each.entropies.tolist()] for each in recorded]
    published = published_weights(trainer)
    return {
        "metrics": found,
        "weights": weights(trainer),
        "published": published,
        "scores": scores,
        "token_values": values,
    }


def steps(trainer: TorchTrainer) -> dict[str, float]:
    async def step() -> dict[str, float]:
        return {**await trainer.forward_backward(groups()), **await trainer.optim_step()}

    return asyncio.run(step())


def weights(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    named = trainer._model.named_parameters()
    return {name: full_tensor(tensor.detach()).clone() for name, tensor in named if tensor.requires_grad}


def published_weights(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    """What engines get after two publications; on other ranks than the first, nothing."""
    for version in range(2):
        asyncio.run(trainer.publish(version))
    return {name: each.clone() for name, each in trainer._weights.fetch(1).items()} if trainer._ranks.first else {}


def resumed(path: Path, ranks: ProcessGroup) -> dict[str, Any]:
    """One more step after what is saved there."""
    trainer = make(*CASES["m2po"], ranks)
    asyncio.run(trainer.restore(path))
    return {"metrics": [steps(trainer)], "weights": weights(trainer)}


def main(folder: Path) -> None:
    world = int(os.environ["WORLD_SIZE"])
    found: dict[str, Any] = {}
    for sequence in (world // 2, world):
        ranks = join_process_group(torch.device("cpu"), sequence)
        for case in CASES:
            found[f"{case}, {sequence}"] = play(case, ranks)
    found["resumed"] = resumed(folder / "alone", ranks)
    trainer = make(*CASES["m2po"], ranks)
    steps(trainer)
    asyncio.run(trainer.save(folder / f"by {world}"))
    if ranks.first:
        torch.save(found, folder / f"found by {world}.pt")
    asyncio.run(trainer.close())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
