"""Losses and advantages beside TRL's own GRPOTrainer, and veRL's functions where it is installed (bench/losses.py)."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from losses import cases, difference

pytestmark = [
    pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed here; make test-trl has it"),
    pytest.mark.filterwarnings("default"),  # TRL's and its libraries' are theirs to mend
]


@pytest.fixture
def in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_losses_and_advantages_are_those_of_trl_and_verl(in_double: None) -> None:
    compared = 0
    for case in cases(trl=True, verl=find_spec("verl") is not None):
        for theirs in (case.trl, case.verl):
            if (gap := difference(case, theirs)) is not None:
                assert gap < 1e-6, case.name
                compared += 1
    assert compared >= 15
