"""The C++ operations agree with torch's, and without a compiler torch's are used."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dojang.engine import cpu_ops
from dojang.engine.cpu_ops import CompiledAttention, compiled_attention_for, compiled_elementwise_for
from dojang.engine.elementwise import CppElementwise, ElementwiseSettings, TorchElementwise

LENGTHS = (1, 2, 3, 4, 5, 31, 64, 77)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""In float32, sums have up to 576 terms: sqrt(576) roundings of 2^-24, 1.4e-6, of a result made of a few such sums. In
bfloat16, sums are in float32 and numbers are rounded to 2^-8 up to three times, 1.2e-2."""


@pytest.fixture
def fresh() -> Iterator[None]:
    """Clear the cached library, as in a process that has not searched for a compiler."""
    cpu_ops._compiled.cache_clear()
    yield
    cpu_ops._compiled.cache_clear()


@pytest.fixture
def attend() -> CompiledAttention:
    found = compiled_attention_for(torch.zeros(1))
    if found is None:
        pytest.skip("needs a C++ compiler")
    return found


@pytest.fixture
def not_optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of whether and how often the library is compiled: with -O3 that takes three seconds."""
    monkeypatch.setattr(cpu_ops, "_FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in cpu_ops._FLAGS))


@pytest.fixture
def compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, not_optimized: None, fresh: None
) -> Callable[[str], Path]:
    """A fake compiler: a shell script, with $REAL as the real one. Returns the file that records its arguments."""
    real = shutil.which("g++")
    if real is None:
        pytest.skip("needs a C++ compiler")

    def made(script: str) -> Path:
        program, calls = tmp_path / "c++", tmp_path / "calls"
        program.write_text(f'#!/bin/sh\nREAL={real}\necho "$@" >> {calls}\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("CXX", str(program))
        return calls

    monkeypatch.setenv("DOJANG_CACHE", str(tmp_path / "cache"))
    return made


PAGE, PAGES = 16, 5
"""Tokens of a page, and pages of a sequence."""


class AttentionCase:
    """Sequences of different lengths, their pages in any order; queries, keys and values are views of one product, as
    in a decoder."""

    def __init__(self, dtype: torch.dtype, heads: int, group: int, size: int) -> None:
        draw = torch.Generator().manual_seed(0)
        rows, self.heads, self.group, self.size = len(LENGTHS), heads, group, size
        pages = torch.randperm((rows + 2) * PAGES, generator=draw)[: rows * PAGES].view(rows, PAGES)
        self.page_table = pages.int().numpy()
        self.cache = [torch.randn((rows + 2) * PAGES, heads, PAGE, size, generator=draw).to(dtype) for _ in range(2)]
        both_NGD = torch.randn(rows, (group + 2) * heads, size, generator=draw).to(dtype)
        self.qkv = both_NGD.split_with_sizes([group * heads, heads, heads], 1)
        self.length_N = torch.tensor(LENGTHS)

    def expected(self, scale: float, window: int = 0, softcap: float = 0.0) -> Tensor:
        """Attention in double precision, row by row."""
        (q_NHD, k_NKD, v_NKD), (keys, values) = self.qkv, (self.by_row(each.double()) for each in self.cache)
        outputs = []
        for row, length in enumerate(LENGTHS):
            keys[row, :, length - 1], values[row, :, length - 1] = k_NKD[row], v_NKD[row]
            q_KGD = q_NHD[row].double().view(self.heads, self.group, self.size)
            seen = slice(max(0, length - window) if window else 0, length)
            score_KGT = q_KGD @ keys[row, :, seen].transpose(1, 2) * scale
            if softcap:
                score_KGT = softcap * torch.tanh(score_KGT / softcap)
            outputs.append(score_KGT.softmax(-1) @ values[row, :, seen])
        return torch.stack(outputs).flatten(1, 2)

    def by_row(self, each_PKTD: Tensor) -> Tensor:
        """The tokens of each sequence in order, [rows, heads, tokens, size]."""
        return each_PKTD[torch.from_numpy(self.page_table).long()].transpose(1, 2).flatten(2, 3)

    def place(self, row: int, token: int) -> tuple[int, slice, int]:
        """Where the cache has a token."""
        return int(self.page_table[row, token // PAGE]), slice(None), token % PAGE


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "group", "size"), [(3, 3, 64), (2, 7, 64), (4, 2, 128), (1, 1, 16), (2, 4, 80)])
def test_attention_matches_torch(
    attend: CompiledAttention, dtype: torch.dtype, heads: int, group: int, size: int
) -> None:
    case = AttentionCase(dtype, heads, group, size)
    expected, before = case.expected(size**-0.5), [each.clone() for each in case.cache]
    found = attend(*case.qkv, *case.cache, case.page_table, case.length_N, scale=size**-0.5)
    assert found.dtype is dtype
    assert found.double().sub(expected).abs().max() < TOLERANCE[dtype]
    for kept, old, new in zip(case.cache, before, case.qkv[1:], strict=True):
        for row, length in enumerate(LENGTHS):  # only the newest token is written
            assert torch.equal(kept[case.place(row, length - 1)], new[row])
            old[case.place(row, length - 1)] = new[row]
        assert torch.equal(kept, old)


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("window", "softcap"), [(5, 0.0), (1, 0.0), (0, 1.5), (30, 50.0)])
def test_attention_with_a_window_and_soft_capping(
    attend: CompiledAttention, dtype: torch.dtype, window: int, softcap: float
) -> None:
    case = AttentionCase(dtype, 2, 3, 32)
    expected = case.expected(0.3, window, softcap)
    found = attend(*case.qkv, *case.cache, case.page_table, case.length_N, scale=0.3, window=window, softcap=softcap)
    assert found.double().sub(expected).abs().max() < TOLERANCE[dtype]


@pytest.mark.numerical
def test_attention_with_extreme_scores_and_nan(attend: CompiledAttention) -> None:
    case = AttentionCase(torch.float32, 2, 2, 64)
    case.qkv[0].mul_(1e4)
    expected = case.expected(0.125)
    assert attend(*case.qkv, *case.cache, case.page_table, case.length_N, scale=0.125).sub(expected).abs().max() < 1e-3
    case.cache[0][case.page_table[5, 0], 0, 7] = torch.nan
    found = attend(*case.qkv, *case.cache, case.page_table, case.length_N, scale=0.125)
    assert found[5, :2].isnan().all()
    assert not found[5, 2:].isnan().any()
    assert not found[[0, 1, 2, 3, 4, 6, 7]].isnan().any()


@pytest.mark.numerical
def test_attention_is_independent_of_threads_and_other_sequences(attend: CompiledAttention) -> None:
    case = AttentionCase(torch.float32, 3, 3, 64)
    together = attend(*case.qkv, *case.cache, case.page_table, case.length_N, scale=0.125)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(attend(*case.qkv, *case.cache, case.page_table, case.length_N, scale=0.125), together)
    finally:
        torch.set_num_threads(before)
    for row in range(len(LENGTHS)):
        one = slice(row, row + 1)
        q, k, v, length, pages = (each[one] for each in (*case.qkv, case.length_N, case.page_table))
        alone = attend(q, k, v, *case.cache, pages, length, scale=0.125)
        assert torch.equal(alone, together[one])


class ElementwiseCase:
    """The same inputs for the C++ and the torch operations, the latter in double precision."""

    def __init__(
        self,
        dtype: torch.dtype,
        rows: int = 70,
        heads: tuple[int, int] = (9, 3),
        size: int = 64,
        rotated: int = 0,
        offset: float = 0.0,
    ) -> None:
        draw = torch.Generator().manual_seed(0)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw).to(dtype)

        self.x_NE, self.y_NE, self.weight_E = numbers(rows, 576), numbers(rows, 576), numbers(576)
        self.qkv_NF, self.norms = numbers(rows, (heads[0] + 2 * heads[1]) * size), (numbers(size), numbers(size))
        self.gate_up_NF = numbers(rows, 2 * 1000)
        rotation = (numbers(90, rotated or size), numbers(90, rotated or size))
        self.position_N = torch.randint(90, (rows,), generator=draw)
        compiled = compiled_elementwise_for(self.x_NE)
        if compiled is None:
            pytest.skip("needs a C++ compiler")
        exact = (rotation[0].double(), rotation[1].double())
        self.cpp = CppElementwise(ElementwiseSettings(*heads, size, 1e-5, [rotation], offset), compiled)
        self.plain = TorchElementwise(ElementwiseSettings(*heads, size, 1e-5, [exact], offset))
        for each in (self.cpp, self.plain):
            each.set_positions(self.position_N)


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("adding", [True, False])
def test_add_rms_norm_matches_torch(dtype: torch.dtype, adding: bool) -> None:
    case = ElementwiseCase(dtype)
    sum_NE = case.x_NE + case.y_NE if adding else case.x_NE.clone()
    expected = case.plain.add_rms_norm(sum_NE.double(), None, case.weight_E.double())
    found = case.cpp.add_rms_norm(case.x_NE, case.y_NE if adding else None, case.weight_E)
    assert torch.equal(case.x_NE, sum_NE)  # in place
    assert torch.allclose(found.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("heads", "size"), [((9, 3), 64), ((2, 2), 128), ((3, 1), 10)])
def test_rotary_matches_torch(dtype: torch.dtype, normed: bool, heads: tuple[int, int], size: int) -> None:
    case = ElementwiseCase(dtype, heads=heads, size=size)
    norms = case.norms if normed else (None, None)
    exact = [None if each is None else each.double() for each in norms]
    expected = case.plain.rotary(case.qkv_NF.double(), *exact)
    found = case.cpp.rotary(case.qkv_NF, *norms)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        assert torch.allclose(mine.double(), theirs, rtol=TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rope", [0, None])
def test_partial_rotation_and_norms_with_an_offset(dtype: torch.dtype, rope: int | None) -> None:
    case = ElementwiseCase(dtype, heads=(3, 1), size=64, rotated=48, offset=1.0)
    expected = case.plain.rotary(case.qkv_NF.double(), *(each.double() for each in case.norms), rope)
    found = case.cpp.rotary(case.qkv_NF, *case.norms, rope)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine.double(), theirs, rtol=TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])
    normed = case.plain.add_rms_norm(case.x_NE.double(), None, case.weight_E.double())
    mine = case.cpp.add_rms_norm(case.x_NE, None, case.weight_E)
    assert torch.allclose(mine.double(), normed, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_silu_mul_matches_torch(dtype: torch.dtype) -> None:
    case = ElementwiseCase(dtype)
    case.gate_up_NF[:, :4] = torch.tensor([0.0, -300.0, 300.0, -20.0])
    expected = case.plain.silu_mul(case.gate_up_NF.double())
    found = case.cpp.silu_mul(case.gate_up_NF)
    assert torch.allclose(found.double(), expected, rtol=TOLERANCE[dtype], atol=1e-6)
    case.gate_up_NF[3, 5] = torch.nan
    assert case.cpp.silu_mul(case.gate_up_NF)[3].isnan().nonzero().tolist() == [[5]]


@pytest.mark.numerical
def test_elementwise_is_independent_of_other_rows() -> None:
    case, other = ElementwiseCase(torch.float32), ElementwiseCase(torch.float32)
    together = [
        case.cpp.add_rms_norm(case.x_NE, case.y_NE, case.weight_E),
        torch.cat(case.cpp.rotary(case.qkv_NF, *case.norms), 1),
        case.cpp.silu_mul(case.gate_up_NF),
    ]
    for row in (0, 41, 69):
        one = slice(row, row + 1)
        other.cpp.set_positions(other.position_N[one])
        alone = [
            other.cpp.add_rms_norm(other.x_NE[one], other.y_NE[one], other.weight_E),
            torch.cat(other.cpp.rotary(other.qkv_NF[one], *other.norms), 1),
            other.cpp.silu_mul(other.gate_up_NF[one]),
        ]
        assert all(torch.equal(mine, all_of[one]) for mine, all_of in zip(alone, together, strict=True))


@pytest.mark.parametrize("keys", [torch.zeros(1, dtype=torch.float64), torch.zeros(1, device="meta")])
def test_unsupported_tensors_use_torch(keys: Tensor) -> None:
    assert compiled_attention_for(keys) is None
    assert compiled_elementwise_for(keys) is None


def test_without_a_compiler_torch_is_used(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert compiled_attention_for(torch.zeros(1)) is None


def test_the_library_is_compiled_once(compiler: Callable[[str], Path]) -> None:
    calls = compiler('exec "$REAL" "$@"')
    for _ in range(2):
        assert compiled_attention_for(torch.zeros(1)) is not None
        cpu_ops._compiled.cache_clear()
    assert [line.split()[0] for line in calls.read_text().splitlines()] == [
        "--version",
        "-std=c++17",
        "-shared",
        "--version",
    ]


def test_a_truncated_library_is_compiled_again(compiler: Callable[[str], Path]) -> None:
    compiler('exec "$REAL" "$@"')
    assert compiled_attention_for(torch.zeros(1)) is not None
    kept, _ = sorted(Path(os.environ["DOJANG_CACHE"], "native").iterdir(), key=lambda each: each.suffix, reverse=True)
    whole = kept.read_bytes()
    kept.unlink()  # the loaded library stays mapped
    kept.write_bytes(whole[: len(whole) // 2])  # loading this would crash the process
    cpu_ops._compiled.cache_clear()
    assert compiled_attention_for(torch.zeros(1)) is not None
    assert kept.read_bytes() == whole


@pytest.mark.parametrize("before", ["env ", "/no/such/compiler"])
def test_compiler_with_arguments_and_missing_compiler(
    before: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    not_optimized: None,
    fresh: None,
    attend: CompiledAttention,
) -> None:
    monkeypatch.setenv("DOJANG_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", f"{before}g++" if before.endswith(" ") else before)
    cpu_ops._compiled.cache_clear()
    assert compiled_attention_for(torch.zeros(1)) is not None


def test_works_with_an_unwritable_cache(compiler: Callable[[str], Path], tmp_path: Path) -> None:
    compiler('exec "$REAL" "$@"')
    (tmp_path / "cache").write_text("a file")
    with pytest.warns(RuntimeWarning, match="set DOJANG_CACHE to a directory that can be written"):
        assert compiled_attention_for(torch.zeros(1)) is not None


def test_a_failing_compiler_warns_and_torch_is_used(compiler: Callable[[str], Path]) -> None:
    compiler('[ "$1" = --version ] || { echo "no such processor" >&2; exit 1; }')
    with pytest.warns(RuntimeWarning, match="torch's slower ones are used: no such processor"):
        assert compiled_attention_for(torch.zeros(1)) is None
    assert compiled_attention_for(torch.zeros(1)) is None  # warns once
