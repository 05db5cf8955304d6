"""Hosts for tests, which are gone afterwards."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from network_hosts import Lab, labs


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[[int], Lab]]:
    with labs(tmp_path) as make:
        yield make
