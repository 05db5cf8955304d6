"""Several processes train as one does: the same losses, log-probs and weights, up to the order of float64 sums."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")
from train_as_rank import CASES, groups, make, play, resumed, steps

import commands
from dojang.core.errors import ConfigError
from dojang.trainer.process_group import SINGLE_PROCESS, join_process_group
from dojang.trainer.ulysses import check_heads
from error_bounds import CLOSE, EQUAL

SCRIPT = Path(__file__).with_name("train_as_rank.py")
SEQUENCES = {2: (1, 2), 4: (2, 4)}  # four ranks without sequence parallelism do what two do


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a checkpoint by one process."""
    folder = tmp_path_factory.mktemp("ranks")
    trainer = make(*CASES["m2po"], SINGLE_PROCESS)
    steps(trainer)
    asyncio.run(trainer.save(folder / "alone"))
    return folder


@pytest.fixture(scope="module", params=sorted(SEQUENCES))
def found(request: pytest.FixtureRequest, folder: Path) -> tuple[int, dict[str, Any]]:
    world = request.param
    command = [sys.executable, commands.TORCHRUN, "--standalone", f"--nproc-per-node={world}"]
    sources = (str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sources))}
    played = commands.run(
        [*command, str(SCRIPT), str(folder)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert played.returncode == 0, played.stderr[-5000:]
    return world, torch.load(folder / f"found by {world}.pt")


def same(left: dict[str, Any], right: dict[str, Any], tolerance: float = EQUAL) -> None:
    """Losses are sums of terms of size one, weights are of size one or less, and steps no longer than gradients are
    (`EPSILON`): the tolerance is absolute, and relative for figures that are larger."""
    for mine, theirs in zip(left["metrics"], right["metrics"], strict=True):
        assert mine == pytest.approx(theirs, rel=tolerance, abs=tolerance)
    assert left["weights"].keys() == right["weights"].keys()
    for name, tensor in left["weights"].items():
        torch.testing.assert_close(tensor, right["weights"][name], rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_ranks_learn_what_one_process_learns(found: tuple[int, dict[str, Any]], case: str) -> None:
    world, results = found
    expected = play(case, SINGLE_PROCESS)
    tolerance = CLOSE if case == "qlora" else EQUAL  # bitsandbytes computes in float32
    for sequence in SEQUENCES[world]:
        mine = results[f"{case}, {sequence}"]
        same(mine, expected, tolerance)
        assert mine["published"].keys() == expected["published"].keys()
        for name, tensor in mine["published"].items():
            torch.testing.assert_close(tensor, expected["published"][name], rtol=tolerance, atol=tolerance)
        for own, other in zip(mine["scores"], expected["scores"], strict=True):
            assert own == pytest.approx(other, rel=tolerance)
        assert len(mine["token_values"]) == 2 * sum(len(group.samples) for group in groups())
        for own, other in zip(mine["token_values"], expected["token_values"], strict=True):
            assert own == pytest.approx(other, rel=CLOSE, abs=CLOSE)  # recorded in float32


@pytest.mark.slow
def test_a_checkpoint_goes_from_any_number_of_ranks_to_any_other(
    found: tuple[int, dict[str, Any]], folder: Path
) -> None:
    world, results = found
    expected = resumed(folder / "alone", SINGLE_PROCESS)
    same(results["resumed"], expected)
    same(resumed(folder / f"by {world}", SINGLE_PROCESS), expected)


def test_the_samples_cannot_be_divided_unevenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "6")
    with pytest.raises(ConfigError, match=r"train.sequence_parallel=4 does not divide the world size of 6.*torchrun"):
        join_process_group(torch.device("cpu"), 4)


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(9, 3, 2), (12, 3, 2), (8, 6, 4)])
def test_indivisible_attention_heads_are_refused(heads: int, kv_heads: int, ranks: int) -> None:
    with pytest.raises(ConfigError, match=f"train.sequence_parallel={ranks} cannot divide the model's {heads}"):
        check_heads(heads, kv_heads, ranks)


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(9, 3, 3), (16, 2, 4), (16, 8, 4), (4, 4, 1)])
def test_heads_that_can_be_divided(heads: int, kv_heads: int, ranks: int) -> None:
    check_heads(heads, kv_heads, ranks)
