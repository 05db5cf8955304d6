"""Who plays a whole GRPO step: dojang, TRL's GRPOTrainer, and plain transformers and torch.

Each imports what it needs when it plays, in a process of its own.
"""

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from train_work import MOST, PROMPTS, SAMPLES, Begun, Clock, Spent, prompts, reward, wanted

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from dojang.protocols import Algorithm
    from dojang.types import Completion, Group

__all__ = ["PLAYERS"]

MICRO = {"uniform": 16, "geometric": 8}
"""Samples that TRL and plain transformers learn from at a time: padded, about the 2,048 tokens of dojang."""


def play_dojang(name: str, lengths: str, clock: Clock) -> None:
    from dojang.runs import training

    training.import_build()  # the same imports as `dojang train`
    import torch

    from dojang.algos.grpo import GrpoConfig
    from dojang.engine.torch_engine import TorchEngine
    from dojang.trainer.config import TrainConfig
    from dojang.trainer.torch_trainer import TorchTrainer
    from dojang.types import Sampling
    from dojang.weight_sync.versions import WeightVersions
    from shapes import fast_dtype, load

    compute = fast_dtype("cpu")
    model, tokenizer = load(name, torch.float32, "cpu")
    weights = WeightVersions(compute)
    engine = TorchEngine(model, tokenizer, weights, max_num_seqs=PROMPTS * SAMPLES, dtype=compute)
    engine._scheduler._stop_criteria.end_tokens = frozenset()  # lengths are given
    algorithm = GrpoConfig().make(max_tokens=MOST)
    trainer = TorchTrainer(
        model,
        None,
        tokenizer,
        algorithm,
        weights,
        TrainConfig(lr=1e-6),
        total_updates=clock.steps + 1,
        max_tokens=MOST,
        temperature=1.0,
        compute=compute,
    )

    async def step(number: int) -> None:
        with clock.part("generate"):
            ids = [tuple(tokenizer(text)["input_ids"]) for text in prompts(number)]
            asked = [
                engine.generate(ids[at // SAMPLES], 1, Sampling(1.0, length, seed=number, prompt_index=at))
                for at, length in enumerate(wanted(lengths, number))
            ]
            drawn = [completion for (completion,) in await asyncio.gather(*asked)]
        with clock.part("reward"):
            rewards = [reward(each.text) for each in drawn]
        with clock.part("update"):
            await trainer.forward_backward(_credited(algorithm, ids, drawn, rewards))
            await trainer.optim_step()
            await trainer.publish(number + 1)
            await engine.load(number + 1)

    async def whole() -> None:
        with suppress(Begun):
            for number in range(clock.steps + 1):
                clock.begin()
                with clock.part("step"):
                    await step(number)
        await engine.close()

    asyncio.run(whole())


def _credited(
    algorithm: "Algorithm",
    ids: Sequence[tuple[int, ...]],
    drawn: Sequence["Completion"],
    rewards: Sequence[float],
) -> "list[Group]":
    from dojang.loop.rollout import compute_advantages
    from dojang.types import Group, Message, Outcome, Problem, Sample, Verdict

    samples = [
        Sample.of(ids[at // SAMPLES], each, Verdict(Outcome.WRONG, told))
        for at, (each, told) in enumerate(zip(drawn, rewards, strict=True))
    ]
    problem = Problem("", "", (Message("user", ""),), None)
    groups = [
        Group(problem, place, tuple(samples[place * SAMPLES : (place + 1) * SAMPLES])) for place in range(PROMPTS)
    ]
    return compute_advantages(algorithm, groups)


def play_trl(name: str, lengths: str, clock: Clock) -> None:
    import torch
    from datasets import Dataset
    from transformers import StoppingCriteriaList
    from trl import GRPOConfig, GRPOTrainer

    from lengths import Ends
    from shapes import fast_dtype, load

    model, tokenizer = load(name, torch.float32, "cpu")
    tokenizer.pad_token = tokenizer.eos_token  # so that what comes after a sample's end counts as its end
    generate, numbers = model.generate, iter(range(clock.steps + 1))
    drawing: list[int] = []

    def stopped(*asked: Any, **options: Any) -> Any:
        """Ended by the lengths wanted and nothing else: TRL takes a sample to end with the first end there is."""
        drawing[:] = wanted(lengths, next(numbers))
        with clock.part("generate"):
            width = options["input_ids"].shape[1]
            end_B = width + torch.tensor(drawing)
            options["generation_config"].eos_token_id = model.generation_config.eos_token_id = None
            found_BN = generate(*asked, **options, stopping_criteria=StoppingCriteriaList([Ends(end_B)]))
            found_BN[:, width:].masked_fill_(found_BN[:, width:] == tokenizer.eos_token_id, 0)
            return found_BN.scatter(1, end_B[:, None] - 1, tokenizer.eos_token_id)

    def rewards(completions: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        if sorted(map(len, completion_ids)) != sorted(drawing):
            raise AssertionError(f"{sum(map(len, completion_ids))} tokens instead of {sum(drawing)}")
        with clock.part("reward"):
            return [reward(text) for text in completions]

    model.generate = stopped
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=rewards,
            train_dataset=Dataset.from_list(
                [{"prompt": text} for step in range(clock.steps + 1) for text in prompts(step)]
            ),
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=MICRO[lengths],
                gradient_accumulation_steps=PROMPTS * SAMPLES // MICRO[lengths],
                num_generations=SAMPLES,
                max_completion_length=MOST,
                max_steps=clock.steps + 1,
                shuffle_dataset=False,
                learning_rate=1e-6,
                beta=0.0,
                temperature=1.0,
                save_strategy="no",
                report_to="none",
                gradient_checkpointing=False,
                use_cpu=True,
                bf16=fast_dtype("cpu") is torch.bfloat16,
                disable_tqdm=True,
                logging_steps=1000,
            ),
        )
        train_step, begun = trainer.training_step, list[Spent]()

        def timed(*asked: Any, **options: Any) -> Any:
            clock.begin()
            begun.append(Spent.now())
            return train_step(*asked, **options)

        trainer.training_step = timed
        with suppress(Begun):
            trainer.train()
    clock.split([*begun[:: PROMPTS * SAMPLES // MICRO[lengths]], Spent.now()])


def play_plain(name: str, lengths: str, clock: Clock) -> None:
    import torch

    from dojang.algos.grpo import GrpoConfig
    from dojang.types import Completion
    from shapes import fast_dtype, load
    from train_plain import Plain

    model, tokenizer = load(name, torch.float32, "cpu")
    algorithm = GrpoConfig().make(max_tokens=MOST)
    learner = Plain(model, sequences=MICRO[lengths], compute=fast_dtype("cpu"), on_policy=True)

    def step(number: int) -> None:
        with clock.part("generate"):
            ids = [tuple(tokenizer(text)["input_ids"]) for text in prompts(number)]
            drawn = _generated(model, [each for each in ids for _ in range(SAMPLES)], wanted(lengths, number))
        with clock.part("reward"):
            rewards = [reward(text) for text in tokenizer.batch_decode(drawn)]
        with clock.part("update"):
            completions = [Completion(each, (0.0,) * len(each), "", "length", number) for each in drawn]
            groups = _credited(algorithm, ids, completions, rewards)
            learner.forward_backward([sample for group in groups for sample in group.samples])
            learner.step()

    with suppress(Begun):
        for number in range(clock.steps + 1):
            clock.begin()
            with clock.part("step"):
                step(number)


def _generated(
    model: "PreTrainedModel", ids: Sequence[tuple[int, ...]], counts: Sequence[int]
) -> list[tuple[int, ...]]:
    import torch
    from transformers import GenerationConfig, StoppingCriteriaList

    from lengths import Ends
    from shapes import fast_dtype

    width = max(map(len, ids))
    token_BN = torch.tensor([[0] * (width - len(each)) + list(each) for each in ids])
    seen_BN = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in ids])
    how = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, max_new_tokens=max(counts), pad_token_id=0)
    ends = StoppingCriteriaList([Ends(width + torch.tensor(counts))])
    half = fast_dtype("cpu")  # as everybody else has it
    with torch.inference_mode(), torch.autocast("cpu", half, enabled=half is torch.bfloat16):
        found = model.generate(token_BN, attention_mask=seen_BN, generation_config=how, stopping_criteria=ends)
    return [tuple(row[width : width + count]) for row, count in zip(found.tolist(), counts, strict=True)]


PLAYERS: Mapping[str, Callable[[str, str, Clock], None]] = {
    "dojang": play_dojang,
    "TRL": play_trl,
    "plain transformers": play_plain,
}
