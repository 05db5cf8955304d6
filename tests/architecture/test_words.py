"""Documentation and docstrings are in plain words, and name settings and commands that exist."""

import ast
import re
from collections import Counter
from pathlib import Path

from typer.main import get_command

import dojang
from dojang.commands.main import app
from dojang.config.key_docs import keys

PACKAGE = Path(dojang.__file__).parent
ROOT = PACKAGE.parents[1]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WORDS = re.compile(r"\b(nobody|whoever|somebody|so many)\b", re.IGNORECASE)
OPENINGS = re.compile(r"(What|Of|Whose|Who|Where) ")
SECTIONS = (
    "algo checkpoint data distillation eval health judge loop model rollout runtime task tester track train workflow"
)
SETTING = re.compile(rf"`[^`\n]*?(?<![\w.])((?:{SECTIONS.replace(' ', '|')})(?:\.[a-z_][a-z_0-9]*)+)(?![\w(/])[^`\n]*`")
COMMAND = re.compile(r"(?:\$ )?dojang ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")
FILES = (".py", ".md", ".parquet", ".jsonl", ".gz", ".toml")


def docstrings(path: Path) -> list[str]:
    """Docstrings of a module, of its classes and functions, and of attributes."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.append(node.value.value.strip())
    return found


def code_lines(page: Path) -> list[str]:
    """Lines of indented and fenced code blocks."""
    lines, fenced = [], False
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            lines.append(line.strip())
    return lines


def test_code_and_docs_use_no_private_words() -> None:
    found: Counter[str] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        package = path.relative_to(PACKAGE).parts[0]
        text = path.read_text()
        found[package] += len(WORDS.findall(text)) + sum(bool(OPENINGS.match(each)) for each in docstrings(path))
    for page in PAGES:
        found[page.name] += len(WORDS.findall(page.read_text()))
    assert {name: count for name, count in found.items() if count} == {}


def test_documented_settings_exist() -> None:
    known = {key.name for key in keys()}
    prefixes = {name.rsplit(".", depth)[0] for name in known for depth in range(1, name.count(".") + 1)}
    mappings = tuple(f"{name}." for name in known | prefixes if f"{name}.NAME" in prefixes or name in FREE)
    wrong = {
        f"{page.name}: {name}"
        for page in PAGES
        if page.name != "from-verl.md"  # has veRL's settings, too: tests/docs/test_other_trainers.py
        for name in SETTING.findall(page.read_text())
        if name not in known | prefixes and not name.startswith(mappings) and not name.endswith(FILES)
    }
    assert wrong == set()


def test_documented_commands_exist() -> None:
    commands = get_command(app).commands
    wrong = set()
    for page in PAGES:
        for first, second in (found.groups() for line in code_lines(page) if (found := COMMAND.match(line))):
            if first not in commands:
                wrong.add(f"{page.name}: dojang {first}")
            elif second and (group := getattr(commands[first], "commands", None)) and second not in group:
                wrong.add(f"{page.name}: dojang {first} {second}")
    assert wrong == set()


FREE = {"task.rewards", "model.chat_template_kwargs", "track.custom_options", "task.options", "algo.options"}
"""Settings whose keys are the user's own."""
