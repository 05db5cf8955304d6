# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,import-untyped"
"""Triton kernels for the GPU: element-wise operations, decode attention over the KV cache, and sampling.

A decode step runs a few hundred small kernels, so each one saved counts: the residual sum is fused with the norm after
it, the attention that first reads a token's keys and values also stores them, and sampling needs one pass over the
logits. Imported only on machines with a GPU.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dojang.engine.elementwise import ElementwiseSettings

__all__ = ["Sampler", "TritonElementwise", "attend_cache", "quantize_rows"]

_LOG2E = tl.constexpr(1.4426950408889634)
_PROGRAMS = 528
"""About four programs per multiprocessor of a large GPU: fewer leave it partly idle."""
_VOCABULARY_BLOCK = 1024


@triton.jit
def _add_rms_norm_kernel(x_at, y_at, weight_at, out_at, size, epsilon, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(x_at + row * size + at, inside, 0.0)
    if ADDS:
        x += tl.load(y_at + row * size + at, inside, 0.0)
        tl.store(x_at + row * size + at, x, inside)
    wide = x.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + epsilon)
    weight = tl.load(weight_at + at, inside, 0.0)
    tl.store(out_at + row * size + at, normed.to(x.dtype) * weight, inside)


@triton.jit
def _rotary_kernel(
    qkv_at, position_at, cos_at, sin_at, q_norm_at, k_norm_at, row_size, positions, epsilon,
    HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half: tl.constexpr = HEAD // 2
    at = tl.arange(0, BLOCK)
    inside = at < half
    base = qkv_at + row * row_size + head * HEAD
    first = tl.load(base + at, inside, 0.0)
    kind = first.dtype
    first, second = first.to(tl.float32), tl.load(base + half + at, inside, 0.0).to(tl.float32)
    if NORMS:
        scale = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / HEAD + epsilon)
        norm_at = q_norm_at if head < HEADS else k_norm_at
        first = (first * scale).to(kind).to(tl.float32) * tl.load(norm_at + at, inside, 0.0).to(tl.float32)
        second = (second * scale).to(kind).to(tl.float32) * tl.load(norm_at + half + at, inside, 0.0).to(tl.float32)
    # A finished sequence may be decoded on for a few steps, past the end of the table.
    position = tl.minimum(tl.load(position_at + row), positions - 1).to(tl.int64)
    cos = tl.load(cos_at + position * HEAD + at, inside, 0.0).to(tl.float32)
    sin = tl.load(sin_at + position * HEAD + at, inside, 0.0).to(tl.float32)
    tl.store(base + at, (first * cos - second * sin).to(kind), inside)
    tl.store(base + half + at, (second * cos + first * sin).to(kind), inside)


@triton.jit
def _silu_mul_kernel(gate_up_at, out_at, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gate = tl.load(gate_up_at + row * 2 * size + at, inside, 0.0)
    up = tl.load(gate_up_at + row * 2 * size + size + at, inside, 0.0)
    wide = gate.to(tl.float32)
    tl.store(out_at + row * size + at, (wide / (1.0 + tl.exp(-wide))).to(gate.dtype) * up, inside)


class TritonElementwise:
    """Elementwise with one Triton kernel per method, for models like Llama (`Decoder.fused`). Overwrites its inputs."""

    def __init__(self, settings: ElementwiseSettings) -> None:
        self._heads, self._kv_heads = settings.heads, settings.kv_heads
        self._epsilon = settings.epsilon
        (cos_TD, sin_TD) = settings.ropes[0]
        self._cos_TD, self._sin_TD = cos_TD.contiguous(), sin_TD.contiguous()

    def set_positions(self, position_N: Tensor) -> None:
        self._position_N = position_N

    def add_rms_norm(self, x_NE: Tensor, y_NE: Tensor | None, weight_E: Tensor) -> Tensor:
        out_NE = torch.empty_like(x_NE)
        rows, size = x_NE.shape
        other_NE = x_NE if y_NE is None else y_NE
        block = triton.next_power_of_2(size)
        _add_rms_norm_kernel[(rows,)](x_NE, other_NE, weight_E, out_NE, size, self._epsilon, y_NE is not None, block)
        return out_NE

    def rotary(
        self, qkv_NF: Tensor, q_norm_D: Tensor | None, k_norm_D: Tensor | None, rope: int | None = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert rope == 0
        rows, size = qkv_NF.shape
        head, rotated = self._cos_TD.shape[-1], self._heads + self._kv_heads
        norms = q_norm_D is not None
        _rotary_kernel[(rows, rotated)](
            qkv_NF, self._position_N, self._cos_TD, self._sin_TD,
            q_norm_D if norms else qkv_NF, k_norm_D if norms else qkv_NF, size, len(self._cos_TD), self._epsilon,
            self._heads, head, triton.next_power_of_2(head // 2), norms, num_warps=1,
        )  # fmt: skip
        all_NFD = qkv_NF.view(rows, -1, head)
        return all_NFD[:, : self._heads], all_NFD[:, self._heads : rotated], all_NFD[:, rotated:]

    def silu_mul(self, gate_up_NF: Tensor) -> Tensor:
        rows, size = len(gate_up_NF), gate_up_NF.shape[1] // 2
        out_NF = gate_up_NF.new_empty(rows, size)
        _silu_mul_kernel[(rows, triton.cdiv(size, 1024))](gate_up_NF, out_NF, size, 1024)
        return out_NF


# Attention -----------------------------------------------------------------------------------------------------------


@triton.jit
def _attend_kernel(  # noqa: PLR0915  # a kernel calls nothing
    q_at, k_at, v_at, keys_at, values_at, out_at, sums_at, peaks_at, weights_at, position_at, table_at,
    scale, length, token_stride, table_stride, page_stride, head_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, HEAD: tl.constexpr,
    HEAD_BLOCK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend one token of one sequence to a share of its earlier positions, for the query heads of one key head. A
    block is a page."""
    program, share = tl.program_id(0), tl.program_id(1)
    row, head = (program // KV_HEADS).to(tl.int64), program % KV_HEADS
    position = tl.minimum(tl.load(position_at + row), length - 1)
    pages_at = table_at + row * table_stride
    each = tl.cdiv(tl.cdiv(position, SPLITS), BLOCK) * BLOCK
    start = share * each
    end = tl.minimum(start + each, position)
    group, at, step = tl.arange(0, GROUP_BLOCK), tl.arange(0, HEAD_BLOCK), tl.arange(0, BLOCK)
    inside = at < HEAD
    q = tl.load(
        q_at + row * token_stride + (head * GROUP + group)[:, None] * HEAD + at[None],
        (group < GROUP)[:, None] & inside[None],
        0.0,
    )
    peak = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
    weight = tl.zeros([GROUP_BLOCK], tl.float32)
    seen = tl.zeros([GROUP_BLOCK, HEAD_BLOCK], tl.float32)
    for first in range(start, end, BLOCK):
        there = first + step < end
        page = tl.load(pages_at + first // BLOCK).to(tl.int64)
        place = page * page_stride + head * head_stride + step[:, None] * HEAD + at[None]
        k = tl.load(keys_at + place, there[:, None] & inside[None], 0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * _LOG2E)
        score = tl.where(there[None], score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        fade = tl.exp2(peak - higher)
        share_of = tl.exp2(score - higher[:, None])
        v = tl.load(values_at + place, there[:, None] & inside[None], 0.0)
        seen = seen * fade[:, None] + tl.dot(share_of.to(v.dtype), v, input_precision=PRECISION)
        weight = weight * fade + tl.sum(share_of, 1)
        peak = higher
    if share == 0:  # the token itself: store its key and value, and attend to it
        k = tl.load(k_at + row * token_stride + head * HEAD + at, inside, 0.0)
        v = tl.load(v_at + row * token_stride + head * HEAD + at, inside, 0.0)
        page = tl.load(pages_at + position // BLOCK).to(tl.int64)
        place = page * page_stride + head * head_stride + position % BLOCK * HEAD + at
        tl.store(keys_at + place, k, inside)
        tl.store(values_at + place, v, inside)
        score = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None], 1) * (scale * _LOG2E)
        higher = tl.maximum(peak, score)
        fade, own = tl.exp2(peak - higher), tl.exp2(score - higher)
        seen = seen * fade[:, None] + own[:, None] * v.to(tl.float32)[None]
        weight = weight * fade + own
        peak = higher
    mask = (group < GROUP)[:, None] & inside[None]
    if SPLITS == 1:
        out = out_at + (program.to(tl.int64) * GROUP + group)[:, None] * HEAD + at[None]
        tl.store(out, (seen / weight[:, None]).to(q.dtype), mask)
    else:
        line = (program.to(tl.int64) * SPLITS + share) * GROUP_BLOCK + group
        tl.store(sums_at + line[:, None] * HEAD_BLOCK + at[None], seen)
        tl.store(peaks_at + line, peak)
        tl.store(weights_at + line, weight)


@triton.jit
def _combine_kernel(
    sums_at, peaks_at, weights_at, out_at,
    GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, HEAD: tl.constexpr, HEAD_BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Combine the shares of one query head."""
    program, member = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, HEAD_BLOCK)
    line = (program * SPLITS + tl.arange(0, SPLITS)) * GROUP_BLOCK + member
    peak = tl.load(peaks_at + line)
    part = tl.exp2(peak - tl.max(peak, 0))
    sums = tl.load(sums_at + line[:, None] * HEAD_BLOCK + at[None])
    seen = tl.sum(sums * part[:, None], 0) / tl.sum(tl.load(weights_at + line) * part, 0)
    tl.store(out_at + (program * GROUP + member) * HEAD + at, seen.to(out_at.dtype.element_ty), at < HEAD)


def _splits(rows: int, kv_heads: int) -> int:
    """Number of shares a sequence's positions are split into, so that few sequences still keep the GPU busy."""
    return min(16, 1 << max(0, (_PROGRAMS // max(1, rows * kv_heads)).bit_length() - 1))


def attend_cache(
    q_NHD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    keys_PKTD: Tensor,
    values_PKTD: Tensor,
    position_N: Tensor,
    page_table: Tensor,
) -> Tensor:
    """Attend one token per sequence to its pages of the KV cache, and store the token's key and value there.

    Queries, keys and values must be views of the same rows.
    """
    rows, heads, head = q_NHD.shape
    kv_heads, page = keys_PKTD.shape[1:3]
    group = heads // kv_heads
    group_block, head_block = max(16, triton.next_power_of_2(group)), max(16, triton.next_power_of_2(head))
    shares = _splits(rows, kv_heads)
    out_NHD = q_NHD.new_empty(rows, heads, head)
    sums = peaks = weights = out_NHD
    if shares > 1:
        lines = rows * kv_heads * shares * group_block
        sums = q_NHD.new_empty(lines, head_block, dtype=torch.float32)
        peaks, weights = q_NHD.new_empty(2, lines, dtype=torch.float32).unbind()
    _attend_kernel[(rows * kv_heads, shares)](
        q_NHD, k_NKD, v_NKD, keys_PKTD, values_PKTD, out_NHD, sums, peaks, weights, position_N, page_table,
        head**-0.5, page_table.shape[1] * page, q_NHD.stride(0), page_table.stride(0),
        keys_PKTD.stride(0), keys_PKTD.stride(1),
        kv_heads, group, group_block, head, head_block, page, shares,
        "ieee" if q_NHD.dtype is torch.float32 else "tf32", num_warps=4,
        # Two blocks are loaded ahead, and their page numbers before them. Blocks of 64 KiB have no room for that.
        num_stages=5 if page * head_block * keys_PKTD.element_size() <= 2**15 else 3,
    )  # fmt: skip
    if shares > 1:
        _combine_kernel[(rows * kv_heads, group)](
            sums, peaks, weights, out_NHD, group, group_block, head, head_block, shares, num_warps=1
        )
    return out_NHD


# FP8 ----------------------------------------------------------------------------------------------------------------


@triton.jit
def _quantize_rows_kernel(x_at, bytes_at, scale_at, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(x_at + row * size + at, inside, 0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-12) / 448.0
    scale = tl.where(tl.max((x != x).to(tl.int32), 0) > 0, float("nan"), scale)  # tl.max leaves NaN out
    scaled = tl.minimum(tl.maximum(x / scale, -448.0), 448.0)
    tl.store(bytes_at + row * size + at, scaled.to(bytes_at.dtype.element_ty), inside)
    tl.store(scale_at + row, scale)


def quantize_rows(x_NE: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in 8 bits (E4M3), with the scale of each, as fp8.py defines them."""
    x_NE = x_NE.contiguous()
    rows, size = x_NE.shape
    bytes_NE = torch.empty_like(x_NE, dtype=torch.float8_e4m3fn)
    scale_N = x_NE.new_empty(rows, dtype=torch.float32)
    block = triton.next_power_of_2(size)
    _quantize_rows_kernel[(rows,)](x_NE, bytes_NE, scale_N, size, block, num_warps=4 if block <= 4096 else 16)
    return bytes_NE, scale_N


# Sampling ------------------------------------------------------------------------------------------------------------


@triton.jit
def _block_sums_kernel(logits_at, peaks_at, plain_at, scaled_at, temperature_at, size, blocks, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits_at + row * size + at, at < size, float("-inf")).to(tl.float32)
    temperature = tl.load(temperature_at + row)
    temperature = tl.where(temperature == 0.0, 1.0, temperature)
    peak = tl.max(score, 0)
    tl.store(peaks_at + row * blocks + block, peak)
    tl.store(plain_at + row * blocks + block, tl.sum(tl.exp(score - peak), 0))
    tl.store(scaled_at + row * blocks + block, tl.sum(tl.exp((score - peak) / temperature), 0))


@triton.jit
def _pick_token_kernel(
    logits_at, peaks_at, plain_at, scaled_at, temperature_at, uniform_at, step_at, stride,
    token_at, position_at, tokens_at, logps_at, plains_at, size, blocks,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Pick a token by inverting the cumulative distribution: first its block, then its place inside the block."""
    row = tl.program_id(0).to(tl.int64)
    step = tl.load(step_at).to(tl.int64)
    temperature = tl.load(temperature_at + row)
    greedy = temperature == 0.0
    temperature = tl.where(greedy, 1.0, temperature)
    block_at = tl.arange(0, BLOCKS)
    real = block_at < blocks
    peaks = tl.load(peaks_at + row * blocks + block_at, real, float("-inf"))
    peak = tl.max(peaks, 0)
    mass = tl.where(
        real, tl.load(scaled_at + row * blocks + block_at, real, 0.0) * tl.exp((peaks - peak) / temperature), 0.0
    )
    total = tl.sum(mass, 0)
    # A uniform number may round to 1, which would select past the last token.
    target = tl.minimum(tl.load(uniform_at + step * stride + row), 0.99999994) * total
    block = tl.minimum(tl.sum(tl.where(real & (tl.cumsum(mass, 0) <= target), 1, 0), 0), blocks - 1)
    block = tl.where(greedy, tl.argmax(peaks, 0), block)
    before = tl.sum(tl.where(block_at < block, mass, 0.0), 0)
    at = tl.arange(0, BLOCK)
    inside = block * BLOCK + at < size
    score = tl.load(logits_at + row * size + block * BLOCK + at, inside, float("-inf")).to(tl.float32)
    part = tl.where(inside, tl.exp((score - peak) / temperature), 0.0)
    place = tl.minimum(tl.sum(tl.where(before + tl.cumsum(part, 0) <= target, 1, 0), 0), BLOCK - 1)
    possible = tl.sum(tl.where(at == place, part, 0.0), 0) > 0.0
    place = tl.where(greedy | (possible == 0), tl.argmax(score, 0), place)
    chosen = tl.sum(tl.where(at == place, score, 0.0), 0)
    plain_total = tl.sum(
        tl.where(real, tl.load(plain_at + row * blocks + block_at, real, 0.0) * tl.exp(peaks - peak), 0.0), 0
    )
    token = tl.minimum(block * BLOCK + place, size - 1)  # NaN logits must not select a token out of range
    tl.store(token_at + row, token.to(tl.int64))
    tl.store(tokens_at + step * stride + row, token.to(tl.int32))
    tl.store(logps_at + step * stride + row, (chosen - peak) / temperature - tl.log(total))
    tl.store(plains_at + step * stride + row, chosen - peak - tl.log(plain_total))
    tl.store(position_at + row, tl.load(position_at + row) + 1)


class Sampler:
    """Samples a token per row at every step and keeps tokens and log-probs on the GPU, [steps, rows] each."""

    def __init__(self, rows: int, steps: int, vocabulary: int, device: torch.device) -> None:
        def numbers(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*sizes, dtype=dtype, device=device)

        self._size = vocabulary
        self._blocks = triton.cdiv(vocabulary, _VOCABULARY_BLOCK)
        self._sums = numbers(3, rows, self._blocks)
        self.temperature_N = numbers(rows)
        self.uniform_RN = numbers(steps, rows)
        self.step = numbers(1, dtype=torch.int32)
        self.token_RN = numbers(steps, rows, dtype=torch.int32)
        self.logp_RN, self.plain_RN = numbers(steps, rows), numbers(steps, rows)

    def sample(self, logits_NV: Tensor, token_N: Tensor, position_N: Tensor) -> None:
        """Sample a token for each row and advance to the next step."""
        rows = len(logits_NV)
        peaks, plain, scaled = self._sums.unbind()
        scratch: tuple[Any, ...] = (logits_NV, peaks, plain, scaled, self.temperature_N)
        _block_sums_kernel[(rows, self._blocks)](*scratch, self._size, self._blocks, _VOCABULARY_BLOCK)
        _pick_token_kernel[(rows,)](
            *scratch, self.uniform_RN, self.step, self.uniform_RN.stride(0),
            token_N, position_N, self.token_RN, self.logp_RN, self.plain_RN, self._size, self._blocks,
            _VOCABULARY_BLOCK, triton.next_power_of_2(self._blocks),
        )  # fmt: skip
        self.step += 1
