"""What is in C++ gives what torch gives, and nothing depends on there being a compiler."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dojang.engine import cpu_ops
from dojang.engine.cpu_ops import Look, between_for, look_for
from dojang.engine.elementwise import NativeArithmetic, PlainArithmetic

LENGTHS = (1, 2, 3, 4, 5, 31, 64, 77)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""In float32, sums have up to 576 terms: sqrt(576) roundings of 2^-24, 1.4e-6, of a result made of a few such sums. In
bfloat16, sums are in float32 and numbers are rounded to 2^-8 up to three times, 1.2e-2."""


@pytest.fixture
def fresh() -> Iterator[None]:
    """As in a process that has not looked for a compiler."""
    cpu_ops._found.cache_clear()
    yield
    cpu_ops._found.cache_clear()


@pytest.fixture
def look() -> Look:
    found = look_for(torch.zeros(1))
    if found is None:
        pytest.skip("there is no C++ compiler")
    return found


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> Callable[[str], Path]:
    """A compiler that is a shell script; $REAL is a real one. What it is called with is written down."""
    real = shutil.which("g++")
    if real is None:
        pytest.skip("there is no C++ compiler")

    def made(script: str) -> Path:
        program, calls = tmp_path / "c++", tmp_path / "calls"
        program.write_text(f'#!/bin/sh\nREAL={real}\necho "$@" >> {calls}\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("CXX", str(program))
        return calls

    monkeypatch.setenv("DOJANG_CACHE", str(tmp_path / "cache"))
    return made


class Case:
    """Slots filled up to different lengths; queries, keys and values are views of one product, as in a decoder."""

    def __init__(self, dtype: torch.dtype, heads: int, group: int, size: int) -> None:
        draw = torch.Generator().manual_seed(0)
        rows, self.heads, self.group, self.size = len(LENGTHS), heads, group, size
        self.cache = [torch.randn(rows + 2, heads, 80, size, generator=draw).to(dtype) for _ in range(2)]
        both_NGD = torch.randn(rows, (group + 2) * heads, size, generator=draw).to(dtype)
        self.qkv = both_NGD.split_with_sizes([group * heads, heads, heads], 1)
        self.length_N = torch.tensor(LENGTHS)

    def expected(self) -> Tensor:
        """In double precision, row by row."""
        (q_NHD, k_NKD, v_NKD), (keys, values) = self.qkv, (each.double() for each in self.cache)
        seen = []
        for row, length in enumerate(LENGTHS):
            keys[row, :, length - 1], values[row, :, length - 1] = k_NKD[row], v_NKD[row]
            q_KGD = q_NHD[row].double().view(self.heads, self.group, self.size)
            seen.append(scaled_dot_product_attention(q_KGD, keys[row, :, :length], values[row, :, :length]))
        return torch.stack(seen).flatten(1, 2)


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "group", "size"), [(3, 3, 64), (2, 7, 64), (4, 2, 128), (1, 1, 16), (2, 4, 80)])
def test_it_sees_what_torch_sees(look: Look, dtype: torch.dtype, heads: int, group: int, size: int) -> None:
    case = Case(dtype, heads, group, size)
    expected, before = case.expected(), [each.clone() for each in case.cache]
    found = look(*case.qkv, *case.cache, case.length_N)
    assert found.dtype is dtype
    assert found.double().sub(expected).abs().max() < TOLERANCE[dtype]
    for kept, old, new in zip(case.cache, before, case.qkv[1:], strict=True):
        for row, length in enumerate(LENGTHS):  # the newest is stored, all others are as they were
            assert torch.equal(kept[row, :, length - 1], new[row])
            old[row, :, length - 1] = new[row]
        assert torch.equal(kept, old)


@pytest.mark.numerical
def test_scores_that_differ_much_and_scores_that_are_no_numbers(look: Look) -> None:
    case = Case(torch.float32, 2, 2, 64)
    case.qkv[0].mul_(1e4)
    expected = case.expected()
    assert look(*case.qkv, *case.cache, case.length_N).sub(expected).abs().max() < 1e-3
    case.cache[0][5, 0, 7] = torch.nan
    found = look(*case.qkv, *case.cache, case.length_N)
    assert found[5, :2].isnan().all()
    assert not found[5, 2:].isnan().any()
    assert not found[[0, 1, 2, 3, 4, 6, 7]].isnan().any()


@pytest.mark.numerical
def test_threads_and_neighbours_change_nothing(look: Look) -> None:
    case = Case(torch.float32, 3, 3, 64)
    together = look(*case.qkv, *case.cache, case.length_N)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(look(*case.qkv, *case.cache, case.length_N), together)
    finally:
        torch.set_num_threads(before)
    for row in range(len(LENGTHS)):
        one = slice(row, row + 1)
        alone = look(*(each[one] for each in case.qkv), *(each[one] for each in case.cache), case.length_N[one])
        assert torch.equal(alone, together[one])


class Between:
    """The same numbers for both kinds of arithmetic, the plain one in double precision."""

    def __init__(self, dtype: torch.dtype, rows: int = 70, heads: tuple[int, int] = (9, 3), size: int = 64) -> None:
        draw = torch.Generator().manual_seed(0)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw).to(dtype)

        self.x_NE, self.y_NE, self.weight_E = numbers(rows, 576), numbers(rows, 576), numbers(576)
        self.qkv_NF, self.norms = numbers(rows, (heads[0] + 2 * heads[1]) * size), (numbers(size), numbers(size))
        self.gate_up_NF = numbers(rows, 2 * 1000)
        rotation = (numbers(90, size), numbers(90, size))
        self.position_N = torch.randint(90, (rows,), generator=draw)
        between = between_for(self.x_NE)
        if between is None:
            pytest.skip("there is no C++ compiler")
        self.native = NativeArithmetic(*heads, 1e-5, *rotation, between)
        self.plain = PlainArithmetic(*heads, 1e-5, *(each.double() for each in rotation))
        for each in (self.native, self.plain):
            each.at(self.position_N)


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("adding", [True, False])
def test_sums_are_normalised_as_torch_does(dtype: torch.dtype, adding: bool) -> None:
    case = Between(dtype)
    sum_NE = case.x_NE + case.y_NE if adding else case.x_NE.clone()
    expected = case.plain.normed_sum(sum_NE.double(), None, case.weight_E.double())
    found = case.native.normed_sum(case.x_NE, case.y_NE if adding else None, case.weight_E)
    assert torch.equal(case.x_NE, sum_NE)  # in place
    assert torch.allclose(found.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("heads", "size"), [((9, 3), 64), ((2, 2), 128), ((3, 1), 10)])
def test_heads_are_turned_as_torch_does(dtype: torch.dtype, normed: bool, heads: tuple[int, int], size: int) -> None:
    case = Between(dtype, heads=heads, size=size)
    norms = case.norms if normed else (None, None)
    exact = [None if each is None else each.double() for each in norms]
    expected = case.plain.rotated(case.qkv_NF.double(), *exact)
    found = case.native.rotated(case.qkv_NF, *norms)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        assert torch.allclose(mine.double(), theirs, rtol=TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_are_gated_as_torch_does(dtype: torch.dtype) -> None:
    case = Between(dtype)
    case.gate_up_NF[:, :4] = torch.tensor([0.0, -300.0, 300.0, -20.0])
    expected = case.plain.gated(case.gate_up_NF.double())
    found = case.native.gated(case.gate_up_NF)
    assert torch.allclose(found.double(), expected, rtol=TOLERANCE[dtype], atol=1e-6)
    case.gate_up_NF[3, 5] = torch.nan
    assert case.native.gated(case.gate_up_NF)[3].isnan().nonzero().tolist() == [[5]]


@pytest.mark.numerical
def test_neighbours_change_nothing_between_products() -> None:
    case, other = Between(torch.float32), Between(torch.float32)
    together = [
        case.native.normed_sum(case.x_NE, case.y_NE, case.weight_E),
        torch.cat(case.native.rotated(case.qkv_NF, *case.norms), 1),
        case.native.gated(case.gate_up_NF),
    ]
    for row in (0, 41, 69):
        one = slice(row, row + 1)
        other.native.at(other.position_N[one])
        alone = [
            other.native.normed_sum(other.x_NE[one], other.y_NE[one], other.weight_E),
            torch.cat(other.native.rotated(other.qkv_NF[one], *other.norms), 1),
            other.native.gated(other.gate_up_NF[one]),
        ]
        assert all(torch.equal(mine, all_of[one]) for mine, all_of in zip(alone, together, strict=True))


@pytest.mark.parametrize("keys", [torch.zeros(1, dtype=torch.float64), torch.zeros(1, device="meta")])
def test_other_caches_are_left_to_torch(keys: Tensor) -> None:
    assert look_for(keys) is None
    assert between_for(keys) is None


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert look_for(torch.zeros(1)) is None


def test_it_is_compiled_once(compiler: Callable[[str], Path]) -> None:
    calls = compiler('exec "$REAL" "$@"')
    for _ in range(2):
        assert look_for(torch.zeros(1)) is not None
        cpu_ops._found.cache_clear()
    assert [line.split()[0] for line in calls.read_text().splitlines()] == [
        "--version",
        "-std=c++17",
        "-shared",
        "--version",
    ]


def test_a_library_that_cannot_be_loaded_is_made_anew(compiler: Callable[[str], Path]) -> None:
    compiler('exec "$REAL" "$@"')
    assert look_for(torch.zeros(1)) is not None
    kept, _ = sorted(Path(os.environ["DOJANG_CACHE"], "native").iterdir(), key=lambda each: each.suffix, reverse=True)
    whole = kept.read_bytes()
    kept.unlink()  # what is loaded stays as it is
    kept.write_bytes(whole[: len(whole) // 2])  # loading this would end the process
    cpu_ops._found.cache_clear()
    assert look_for(torch.zeros(1)) is not None
    assert kept.read_bytes() == whole


@pytest.mark.parametrize("before", ["env ", "/no/such/compiler"])
def test_a_compiler_with_arguments_and_one_that_is_not_there(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None, look: Look
) -> None:
    monkeypatch.setenv("DOJANG_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", f"{before}g++" if before.endswith(" ") else before)
    cpu_ops._found.cache_clear()
    assert look_for(torch.zeros(1)) is not None


def test_a_cache_that_cannot_be_written_is_done_without(compiler: Callable[[str], Path], tmp_path: Path) -> None:
    compiler('exec "$REAL" "$@"')
    (tmp_path / "cache").write_text("a file")
    assert look_for(torch.zeros(1)) is not None


def test_a_compiler_that_fails_is_told_and_torch_used(compiler: Callable[[str], Path]) -> None:
    compiler('[ "$1" = --version ] || { echo "no such processor" >&2; exit 1; }')
    with pytest.warns(RuntimeWarning, match="torch's own is used, which is slower: no such processor"):
        assert look_for(torch.zeros(1)) is None
    assert look_for(torch.zeros(1)) is None  # told once
