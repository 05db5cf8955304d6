"""The benchmark of weight sync with LoRA measures both ways."""

import sys

import pytest
import torch

import lora_publish

pytest.importorskip("peft")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resets the peak memory in /proc")
def test_both_ways_are_measured() -> None:
    costs = [
        lora_publish.measure("dojang-tiny", "cpu", torch.float32, at_once=at_once, rounds=1)
        for at_once in (False, True)
    ]
    assert all(each.seconds > each.pause > 0 for each in costs)
    names = [row.case for row in lora_publish.rows("tiny", *costs, model=1.0)]
    assert names == ["tiny: peak memory", "tiny: weight sync", "tiny: of it without decoding"]
