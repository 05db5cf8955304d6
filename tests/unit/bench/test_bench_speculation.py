import argparse
import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gsm8k_samples
import speculation
from dojang import models
from dojang.engine.decode import SampledTokens, StepInputs
from dojang.types import Sampling
from machine import numbers


def test_a_row_compares_the_same_texts() -> None:
    source = models.resolve("dojang-tiny")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(source)
    prompts = [tuple(tokenizer(text)["input_ids"]) for text in ("What is 12 + 34?", "What is 9 + 8?")]
    mine, plain = (
        speculation.play(model, tokenizer, prompts, Sampling(0.0, 40), sequences=2, draft_tokens=draft_tokens)
        for draft_tokens in (4, 0)
    )
    assert (len(mine.texts), plain.drafted, plain.accepted) == (4, 0, 0)
    assert 0 < mine.accepted <= mine.drafted
    assert mine.steps < plain.steps
    found = speculation.row(2, 4, [mine], [plain])
    assert (found.case, found.subject, found.baseline) == ("2 sequences at a time", "4 draft tokens", "none")
    assert found.ratio == found.value / found.baseline_value
    assert "0 of 4 texts differ" in found.notes


class Runner:
    """Samples nothing; a GPU's runner starts most steps by `continue_decoding`."""

    def decode(self, tokens: Any, positions: Any, inputs: StepInputs) -> Any:
        none = np.zeros((3, 2))
        return lambda: SampledTokens(none.astype(np.int64), none, none, np.array([3, 1]) if inputs.drafts else None)

    def continue_decoding(self, kept: Any, rows: Any, inputs: StepInputs) -> Any:
        return lambda: None


def test_steps_that_continue_others_are_counted() -> None:
    runner, found = Runner(), speculation.Decoded()
    speculation.counted(SimpleNamespace(_scheduler=SimpleNamespace(_runner=runner)), found)  # type: ignore[arg-type]
    runner.decode([1, 2], [4, 5], StepInputs([], np.zeros((8, 2))))
    runner.continue_decoding([0, 1], [0, 1], StepInputs([], np.zeros((5, 2))))
    assert (found.steps, found.drafted) == (13, 0)
    runner.decode([1, 2], [4, 5], StepInputs([], np.zeros((3, 2)), drafts=[[7, 8], []]))()
    assert (found.steps, found.drafted, found.accepted) == (14, 2, 2)


def test_the_engine_is_warm_for_the_whole_length() -> None:
    asked = list[tuple[int, float, int]]()

    async def generate(prompt: Any, samples: int, sampling: Sampling) -> list[Any]:
        asked.append((samples, sampling.temperature, sampling.max_tokens))
        return []

    async def close() -> None: ...

    engine: Any = SimpleNamespace(generate=generate, close=close)
    asyncio.run(gsm8k_samples.timed_samples(engine, [(1, 2)], Sampling(0.5, 300), 4, lambda: asked.append((0, 0.0, 0))))
    assert asked == [(4, 0.5, 300), (0, 0.0, 0), (4, 0.5, 300)]


@pytest.mark.parametrize("text", ["", "x", "0", "1,", "-1", "1.5", "1,,2"])
def test_a_list_of_numbers_is_checked(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a list of whole numbers from 1, such as 1,2,4"):
        numbers(text)
    assert numbers("1,8,64") == [1, 8, 64]
