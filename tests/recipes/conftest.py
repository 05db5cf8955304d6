"""Models the tests of recipes share."""

import json
import shutil
from pathlib import Path

import pytest

from dojang.core.errors import ModelError
from dojang.models import resolve

LAYERS = 2


@pytest.fixture(scope="session")
def smollm2() -> Path:
    try:
        return Path(resolve("smollm2-135m-instruct"))
    except ModelError as error:
        pytest.skip(f"SmolLM2 cannot be had here: {error}")


@pytest.fixture(scope="session")
def shallow_smollm2(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first layers of SmolLM2, with its tokenizer: for tests that do not need good answers."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("models") / "shallow-smollm2"
    shutil.copytree(smollm2, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": LAYERS}))
    kept = ["model.embed_tokens.", "model.norm.", "lm_head.", *(f"model.layers.{layer}." for layer in range(LAYERS))]
    weights = load_file(smollm2 / "model.safetensors")
    chosen = {name: each for name, each in weights.items() if name.startswith(tuple(kept))}
    save_file(chosen, folder / "model.safetensors", {"format": "pt"})
    return folder
