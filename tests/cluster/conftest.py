"""Hosts for tests, which are gone afterwards."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab import Lab


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[[int], Lab]]:
    labs: list[Lab] = []

    def make(count: int) -> Lab:
        labs.append(Lab(count, tmp_path))
        return labs[-1]

    yield make
    for lab in labs:
        for host in lab.hosts:
            if host.log.exists():
                sys.stdout.write(f"--- {host.name} ({host.poll()}), {len(host.processes())} left\n{host.said()}\n")
        lab.remove()
