"""A finished run, its model and small datasets, which the pages of the documentation share."""

import json
import os
import sys
from pathlib import Path

import page_commands
import pytest
import stand_ins

import published_rows

CONTEXT = 16384
"""Context length of the finished run's model: large enough for the prompts of all pages."""


@pytest.fixture(autouse=True)
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts `python` and `dojang` of this environment first on the PATH, as for a reader who has activated it; the
    system may have no `python`."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run (`run`), and the model of its best checkpoint (`model`)."""
    place = tmp_path_factory.mktemp("finished")
    page_commands.typed(["train", "quickstart", *page_commands.SMALL, "--run-dir", str(place / "run")])
    page_commands.typed(["export", str(place / "run"), str(place / "model")])
    for file in (place / "model" / "config.json", *place.glob("run/checkpoints/step-*/config.json")):
        file.write_text(json.dumps({**json.loads(file.read_text()), "max_position_embeddings": CONTEXT}))
    return place


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rows of every published dataset: those of the hub as directories of their names, and prepared ones in
    data/."""
    place = tmp_path_factory.mktemp("library")
    published_rows.hub(place)
    for name, where in stand_ins.SOURCES.items():
        held_out = ["--held-out", "0.1"] if name in ("deepcoder", "deepmath") else []
        paths = ["--input", str(place / where), "--output", str(place / "data" / name)]
        page_commands.typed(["data", "prepare", name, *paths, *held_out])
    return place
