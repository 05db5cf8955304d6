"""What the map says about the code, checked against the code."""

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dojang
from dojang.config import recipe as recipes
from dojang.core import errors

PACKAGE = Path(dojang.__file__).parent
ROOT = PACKAGE.parents[1]
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {"vllm": "inference/vllm.py", "peft": "trainer/lora.py", "bitsandbytes": "trainer/quantization.py"}
HEAVY |= {"mlflow": "track/mlflow.py", "tensorboard": "track/tensorboard.py"}
HEAVY |= {"sagemaker": "cluster/sagemaker/sdk.py", "boto3": "cluster/sagemaker/sdk.py"}
RAYS = ("cluster/ray/", "build/ray.py", "build/ray_judges.py", "build/ray_workers.py")
"""What needs Ray, and is itself imported only when it is used."""
ASKS_RAY = ("track/ray.py", "cluster/bootstrap/node_check.py")
"""A tracker of runs that may be elsewhere, and a process that counts nodes: they ask for Ray when it is there."""
FOR_GPUS = ("engine/cuda_graphs.py", "engine/triton_kernels.py")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LIGHT = (
    *("types", "protocols", "core.errors", "core.section", "core.run_dir"),
    *("config.run_config", "config.recipe", "config.key_docs"),
    *("runs.training", "runs.export", "commands", "commands.run_judge", "commands.bench", "commands.doctor"),
    *("commands.serve_rollouts", "build.worker_config", "viewer.records", "viewer.view"),
    *("integrations.reward_functions", "audit.command", "planning.command", "cluster.bootstrap.start_cluster"),
    *("cluster.sagemaker.job", "cluster.sagemaker.entry_point", "cluster.sagemaker.sdk", "cluster.sagemaker.submit"),
)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def short(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> list[tuple[str, bool, bool]]:
    """Every module that a file imports; whether inside a function; whether at the top."""
    tree = parsed(path)
    lazy = {node for each in ast.walk(tree) if isinstance(each, FUNCTIONS) for node in ast.walk(each)}
    found = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [(name, node in lazy, node in tree.body) for name in names]
    return found


def exported(tree: ast.Module) -> list[str] | None:
    """What `__all__` lists; None without one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(each, "id", "") == "__all__" for each in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def public_definitions(tree: ast.Module) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def own_imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Every (module, name) that is imported from within the package, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "dojang":
            yield from ((node.module, alias.name) for alias in node.names)


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def sort_key(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then functions, each by name."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="not a source checkout")
def test_packages_import_only_lower_layers() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"Contracts: \d+ kept, 0 broken", result.stdout)


def test_light_modules_load_no_torch() -> None:
    """One process imports them all: what is not there in the end was loaded by none."""
    code = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"dojang.{name}")
    if found := {"torch", "transformers", "matplotlib"} & set(sys.modules):
        sys.exit(f"{name} loads {found}")
"""
    result = subprocess.run([sys.executable, "-c", code, *LIGHT], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("package", "home"), HEAVY.items())
def test_heavy_packages_are_imported_lazily_in_one_file(package: str, home: str) -> None:
    for path in FILES:
        for name, is_lazy, _ in imports(path):
            if name.split(".")[0] == package:
                assert short(path) == home
                assert is_lazy


def test_ray_is_imported_in_one_folder_and_that_only_when_it_is_used() -> None:
    for path in FILES:
        if short(path).startswith(RAYS):
            continue
        for name, _, is_at_top in imports(path):
            if is_at_top:
                assert not re.match(r"ray\b|dojang\.(cluster\.ray|build\.ray\w*)\b", name), path
            if short(path) not in ASKS_RAY:
                assert not re.match(r"ray\b", name), path


@pytest.mark.parametrize("path", FILES, ids=short)
def test_no_file_asks_to_be_two(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", FILES, ids=short)
def test_every_module_has_a_name_and_says_what_it_is_for(path: Path) -> None:
    assert not re.search("util|helper|misc|common", path.stem)
    assert ast.get_docstring(parsed(path))


@pytest.mark.parametrize("path", FILES, ids=short)
def test_a_module_exports_what_it_has_in_order(path: Path) -> None:
    tree = parsed(path)
    names = exported(tree)
    if names is None:
        assert public_definitions(tree) == [], "has public names, but no __all__"
        return
    assert names == sorted(names, key=sort_key)
    if short(path) in FOR_GPUS:
        pytest.importorskip("triton", reason="needs Triton, which comes with torch's builds for GPUs")
    if short(path).startswith(RAYS):
        pytest.importorskip("ray", reason="needs Ray, which `make test-ray` installs")
    module = importlib.import_module(module_name(path))
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("path", FILES, ids=short)
def test_only_exported_names_are_imported_elsewhere(path: Path) -> None:
    hidden = []
    for module, name in own_imports(parsed(path)):
        if is_module(f"{module}.{name}"):
            continue
        source = PACKAGE.parent.joinpath(*module.split("."))
        file = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
        if name not in (exported(parsed(file)) or []):
            hidden.append(f"{module}.{name}")
    assert hidden == []


def test_no_two_files_of_tests_share_a_name() -> None:
    """pytest imports them by it."""
    names = Counter(path.name for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


def test_every_recipe_loads() -> None:
    assert "quickstart" in recipes.shipped()
    for name in recipes.shipped():
        assert recipes.load(name).steps >= 1


def test_exit_codes_of_errors_are_unique() -> None:
    """Except of a class that has its parent's."""
    classes = [getattr(errors, name) for name in errors.__all__]
    own = [each.exit_code for each in classes if "exit_code" in vars(each)]
    assert len(set(own)) == len(own)
    assert all(0 < code < 256 for code in own)
    assert all(issubclass(each, errors.DojangError) for each in classes)
    documented = dict(re.findall(r"(\w+)\s+(\d+)(?:\s|$)", errors.__doc__ or ""))
    assert {each.__name__: str(each.exit_code) for each in classes} == documented


def test_the_configuration_page_is_what_the_settings_say() -> None:
    """`make docs` writes it; a setting that changed without it would leave the page wrong."""
    script = ROOT / "docs" / "make_reference.py"
    assert subprocess.run([sys.executable, str(script), "--check"]).returncode == 0, "run make docs and commit the page"


def test_no_pattern_has_a_possessive_group() -> None:
    """Python before 3.11.5, which Debian 12 has, matches (...)*+ wrongly; atomic groups and [...]*+ are right."""
    group = re.compile(r"(?<!\\)\)(?:[*+?]|\{\d*,?\d*\})\+(?!\+)")
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not group.search(node.value), f"{path}:{node.lineno}: {node.value[:200]}"
