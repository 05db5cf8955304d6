"""The folder of code that goes with a job, and what else the checkout has for jobs."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dojang.cluster.sagemaker.source_code import REQUIREMENTS, extras, stage
from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError

ROOT = Path(__file__).parents[4]


def test_staged_code_runs_without_the_checkout(tmp_path: Path) -> None:
    stage(tmp_path, recipes.load("quickstart"), None, None, {})
    assert not list(tmp_path.rglob("__pycache__"))
    code = "import dojang, importlib.metadata as m; print(dojang.__file__, m.version('dojang'))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    where, version = result.stdout.split()
    assert where == str(tmp_path / "dojang" / "__init__.py")
    assert (tmp_path / f"dojang-{version}.dist-info" / "entry_points.txt").read_text().count(
        "vllm.general_plugins"
    ) == 1


def test_requirements_are_those_of_the_recipe(tmp_path: Path) -> None:
    more = tmp_path / "more.txt"
    more.write_text("sympy>=1\n")
    (tmp_path / "staged").mkdir()
    config = recipes.load("quickstart", ["task.name=maths", "train.lora={}"])
    stage(tmp_path / "staged", config, None, more, {})
    lines = (tmp_path / "staged" / REQUIREMENTS).read_text().splitlines()
    names = {re.split(r"[^\w-]", line)[0] for line in lines}
    assert {"torch", "pydantic", "peft", "math-verify", "sympy"} <= names
    assert not names & {"vllm", "bitsandbytes", "sagemaker", "tensorboard"}
    assert not any(";" in line for line in lines)


def test_every_extra_a_recipe_may_need_is_one() -> None:
    there = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {name for recipe in recipes.shipped() for name in extras(recipes.load(recipe), {})}
    assert {"qlora", "maths"} <= needed
    assert needed <= set(there)


def test_mlflow_in_the_environment_is_a_requirement() -> None:
    there = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    arn = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/team"
    config = recipes.load("quickstart")
    assert not {"mlflow", "sagemaker-mlflow"} & set(extras(config, {}))
    assert "sagemaker-mlflow" not in extras(config, {"MLFLOW_TRACKING_URI": "http://there:5000"})
    found = extras(config, {"MLFLOW_TRACKING_URI": arn})
    assert {"mlflow", "sagemaker-mlflow"} <= set(found) & set(there)


def test_user_modules_are_staged_without_hidden_files(tmp_path: Path) -> None:
    own, staged = tmp_path / "own", tmp_path / "staged"
    for name in ("rewards.py", ".env", ".git/config", "runs/a/metrics.jsonl", "package/__init__.py"):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text("x = 1\n")
    staged.mkdir()
    stage(staged, recipes.load("quickstart"), own, None, {})
    there = {path.name for path in staged.iterdir()}
    assert {"rewards.py", "package", "dojang"} <= there
    assert not there & {".env", ".git", "runs"}
    (own / "dojang").mkdir()
    with pytest.raises(ConfigError, match="contains a `dojang`"):
        stage(tmp_path / "again", recipes.load("quickstart"), own, None, {})


def test_the_dockerfile_names_existing_extras_and_files() -> None:
    """The Dockerfile cannot be built here; what it names can be looked for."""
    lines = (ROOT / "docker" / "Dockerfile").read_text()
    there = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = re.search(r"\.\[([\w,-]+)\]", lines)
    assert found
    assert set(found[1].split(",")) <= set(there)
    for copied in re.findall(r"^COPY (.+) \S+$", lines, re.MULTILINE):
        assert all((ROOT / name).exists() for name in copied.split())
    assert "g++" in lines
    assert "ENTRYPOINT" not in re.sub(r"^#.*$", "", lines, flags=re.MULTILINE)  # it would hide the job's own command


@pytest.mark.parametrize("name", ["sagemaker_codefu", "sagemaker_gsm8k"])
def test_the_notebook_can_be_read_and_its_cells_compile(name: str) -> None:
    notebook = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert len(cells) >= 6
    for cell in cells:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        ast.parse("".join(cell["source"]))
