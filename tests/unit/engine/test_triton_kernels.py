"""Decode attention on a GPU over pages that lie anywhere, beside attention in double precision; rows in 8 bits.

Without a GPU it runs in Triton's interpreter, where Triton is installed, with NumPy 2.2 (later ones have no conversion
that the interpreter needs): TRITON_INTERPRET=1 python -m pytest -W ignore::DeprecationWarning FILE
"""

import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET is not set", allow_module_level=True)

from dojang.engine.fp8 import quantized, restored  # noqa: E402
from dojang.engine.triton_kernels import attend_cache, quantize_rows  # noqa: E402  # it needs Triton

PAGE = 64
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
"""The interpreter does not multiply in bfloat16."""
POSITIONS = [0, 1, 62, 63, 64, 65, 127, 128, 200, 319]
"""Of the newest tokens, around the ends of pages."""


def expected(qkv: tuple[Tensor, Tensor, Tensor], keys: Tensor, values: Tensor, pages: list[int], last: int) -> Tensor:
    """Attention of one sequence in double precision, [H, D]."""
    q_HD, k_KD, v_KD = (each.double() for each in qkv)
    heads, size = q_HD.shape
    keys_KTD, values_KTD = (each.double()[pages].transpose(0, 1).flatten(1, 2).clone() for each in (keys, values))
    keys_KTD[:, last], values_KTD[:, last] = k_KD, v_KD
    groups = heads // len(k_KD)
    keys_HTD = keys_KTD[:, : last + 1].repeat_interleave(groups, 0)
    values_HTD = values_KTD[:, : last + 1].repeat_interleave(groups, 0)
    weight_HT = (torch.einsum("hd,htd->ht", q_HD, keys_HTD) * size**-0.5).softmax(-1)
    return torch.einsum("ht,htd->hd", weight_HT, values_HTD)


@pytest.mark.parametrize("rows", [2, 10])
@pytest.mark.parametrize(("kv_heads", "group", "size"), [(2, 3, 64), (1, 6, 24), (2, 2, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_attention_over_pages(dtype: torch.dtype, kv_heads: int, group: int, size: int, rows: int) -> None:
    """With two rows every sequence is divided into shares. Pages that are no one's hold NaN."""
    draw = torch.Generator().manual_seed(0)
    positions = POSITIONS[-rows:]
    count = sum(position // PAGE + 1 for position in positions)
    order = (torch.randperm(count, generator=draw) + 1).tolist()
    tables = [[order.pop() for _ in range(position // PAGE + 1)] for position in positions]
    keys, values = torch.randn(2, count + 3, kv_heads, PAGE, size, generator=draw).to(dtype).to(DEVICE).unbind()
    keys[count + 1 :] = values[count + 1 :] = torch.nan
    page_table = torch.zeros(rows, 8, dtype=torch.int32)
    for row, pages in enumerate(tables):
        page_table[row, : len(pages)] = torch.tensor(pages)
        page_table[row, len(pages) :] = count + 1
    qkv = torch.randn(rows, (group + 2) * kv_heads, size, generator=draw).to(dtype).to(DEVICE)
    q, k, v = qkv.split_with_sizes([group * kv_heads, kv_heads, kv_heads], 1)
    before = [keys.clone(), values.clone()]
    found = attend_cache(q, k, v, keys, values, torch.tensor(positions, device=DEVICE).int(), page_table.to(DEVICE))
    tolerance = 2e-2 if dtype is HALF else 1e-5
    for row, (pages, last) in enumerate(zip(tables, positions, strict=True)):
        wanted = expected((q[row], k[row], v[row]), *before, pages, last)
        assert found[row].double().sub(wanted).abs().max() < tolerance
    for each, old, new in zip((keys, values), before, (k, v), strict=True):  # only the newest tokens are stored
        for row, (pages, last) in enumerate(zip(tables, positions, strict=True)):
            old[pages[last // PAGE], :, last % PAGE] = new[row]
        assert torch.equal(each.nan_to_num(9.0), old.nan_to_num(9.0))


def test_sequences_past_the_end_of_their_pages_write_into_page_0() -> None:
    """So does padding; and past the end of the table a sequence writes its last position."""
    keys = torch.zeros(6, 1, PAGE, 16, device=DEVICE)
    values = torch.zeros_like(keys)
    page_table = torch.tensor([[3, 4, 0], [5, 0, 0], [0, 0, 0], [1, 1, 2]], dtype=torch.int32, device=DEVICE)
    position = torch.tensor([2 * PAGE + 1, PAGE, 0, 9 * PAGE], dtype=torch.int32, device=DEVICE)
    qkv = torch.ones(4, 3, 16, device=DEVICE)
    attend_cache(qkv[:, :1], qkv[:, 1:2], qkv[:, 2:], keys, values, position, page_table)
    written = {(page, place) for page, _, place, _ in keys.nonzero().tolist()}
    assert written == {(0, 1), (0, 0), (2, PAGE - 1)}


@pytest.mark.skipif(DEVICE == "cpu", reason="Triton's interpreter does not round up to powers of two")
@pytest.mark.parametrize("size", [16, 96, 1536, 8960])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_rows_in_8_bits(dtype: torch.dtype, size: int) -> None:
    """As on a CPU, but for a number halfway between two others: divisions may differ by rounding."""
    torch.manual_seed(0)
    x = (torch.randn(7, size) * torch.logspace(-3, 2, 7)[:, None]).to(dtype).to(DEVICE)
    x[3] = 0
    bytes_NE, scale_N = quantize_rows(x)
    wanted, wanted_scale_N = quantized(x)
    assert torch.allclose(scale_N, wanted_scale_N, rtol=1e-6)
    found, expected_NE = (restored(*each, torch.float32) for each in ((bytes_NE, scale_N), (wanted, wanted_scale_N)))
    assert (found != expected_NE).float().mean() < 0.01
    assert ((found - expected_NE).abs() <= expected_NE.abs() / 7).all()
