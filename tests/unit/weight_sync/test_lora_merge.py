import pytest
import torch

from dojang.weight_sync import lora_merge
from dojang.weight_sync.lora_merge import merge_factors


def test_rows_are_merged_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, b, a = torch.ones(5, 3), torch.arange(10.0).reshape(5, 2), torch.arange(6.0).reshape(2, 3)
    expected = [[(4 * i + 1) * j + 6 * i + 4.0 for j in range(3)] for i in range(5)]
    assert merge_factors(weight, b, a, torch.float32).tolist() == expected
    monkeypatch.setattr(lora_merge, "_CHUNK", 6)
    assert merge_factors(weight, b, a, torch.float32).tolist() == expected


def test_merged_weights_do_not_depend_on_the_order_of_sums() -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(300, 200, generator=draw).bfloat16()
    b, a = torch.randn(300, 16, generator=draw), torch.randn(16, 200, generator=draw)
    order = torch.randperm(16, generator=draw)
    expected = merge_factors(weight, b, a, torch.bfloat16)
    assert torch.equal(merge_factors(weight, b[:, order], a[order], torch.bfloat16), expected)
    exact = (weight.double() + b.double() @ a.double()).float()
    torch.testing.assert_close(expected.float(), exact, rtol=2**-8, atol=0)
