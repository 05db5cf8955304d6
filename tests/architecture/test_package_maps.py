"""The docstring of each package maps its modules, as ARCHITECTURE.md says; ARCHITECTURE.md maps the packages."""

import ast
import re
from pathlib import Path

import pytest

import dojang

PACKAGE = Path(dojang.__file__).parent
ROOT = PACKAGE.parents[1]
PACKAGES = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
NAME = r"[a-z]\w*(?:/\w+)*(?:\.py|/)?"
ENTRY = re.compile(rf" *({NAME}(?:, {NAME})*)  +(.*)| *(\w+_\w+) (.*)")
"""Names and two spaces, or a name that is too long for its column and one, before what they are for."""


def contents(package: Path) -> set[str]:
    """Modules and packages."""
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    return modules | {path.parent.name for path in package.glob("*/__init__.py")}


def entries(package: Path) -> tuple[set[str], set[str]]:
    """Names in the first column of a map; and those in its descriptions, as `name.py` or in parentheses."""
    first, further = set[str](), set[str]()
    for line in (ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or "").splitlines():
        if found := ENTRY.match(line):
            names, text = found[1] or found[3], found[2] or found[4]
            first.update(names.split(", "))
            further.update(re.findall(r"\b(\w+)\.py\b", text))
            further.update(name for inside in re.findall(r"\((.*?)\)", text) for name in re.findall(r"\w+", inside))
    return first, further


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_package_maps_its_modules(package: Path) -> None:
    first, further = entries(package)
    mapped = {re.split(r"[/.]", name)[0] for name in first} | further
    assert contents(package) - mapped == set()
    assert {name for name in first if not any((package / each).exists() for each in (name, f"{name}.py"))} == set()


def test_the_architecture_maps_the_packages() -> None:
    if not (ROOT / "ARCHITECTURE.md").is_file():
        pytest.skip("not a source checkout")
    mapped = set(re.findall(r"`(\w+)(?:/|\.py)", (ROOT / "ARCHITECTURE.md").read_text()))
    assert contents(PACKAGE) - mapped == set()
