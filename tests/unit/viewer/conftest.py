"""A viewer over runs, asked as a browser asks it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dojang.viewer.server import Viewer

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def serve() -> Iterator[Callable[..., httpx.Client]]:
    """Starts viewers that end with the test; returns a client of the new one, when all runs are indexed."""
    started: list[tuple[Viewer, httpx.Client]] = []

    def start(*runs: Path, **options: Any) -> httpx.Client:
        viewer = Viewer(runs, **options)
        viewer.__enter__()
        client = httpx.Client(base_url=viewer.url.partition("?")[0], timeout=30)
        started.append((viewer, client))
        assert all(run.index.wait(60) for run in viewer.runs.all())
        return client

    yield start
    for viewer, client in started:
        client.close()
        viewer.close()
