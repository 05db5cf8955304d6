"""Checks the settings, problems and rows that a page shows: YAML and JSON."""

import copy
import json
import platform
import re
from collections.abc import Callable
from typing import Any

import yaml

import dojang
from dojang.api.settings import make_config
from dojang.config import recipe
from dojang.core.errors import ConfigError
from dojang.judge.problem_file import read_problem
from dojang.types import Outcome

__all__ = ["check_json", "check_program", "check_settings"]

BASES = ("quickstart", "quickstart-code", "smollm2-gsm8k", "deepmath-qwen2.5-0.5b", "coder-tester-1.5b")
"""Recipes that a part of a recipe may belong to."""


def check_settings(text: str) -> None:
    """Validates a recipe; or some sections, as a part of one of BASES. A section with a name replaces the recipe's."""
    tree = yaml.safe_load(text)
    assert isinstance(tree, dict), "not a mapping"
    if {"model", "data"} <= tree.keys():
        recipe.resolve("the page", tree)
        return
    why = ""
    for base in BASES:
        try:
            recipe.resolve("the page", _with(recipe.read(base), copy.deepcopy(tree)))
            return
        except ConfigError as error:
            why += f"\nas a part of {base}: {error}"
    raise AssertionError(why)


def _with(base: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    for key, section in part.items():
        mine = base.get(key)
        whole = not isinstance(mine, dict) or not isinstance(section, dict) or "name" in section
        base[key] = section if whole else _with(mine, section)
    return base


def check_json(text: str) -> None:
    """Has the reader of what a page shows read it: a problem of the judge (or an entry of one), or rows to train on."""
    if not text.lstrip().startswith(("{", "[")):
        text = f"{{{text.strip().rstrip(',')}}}"
    try:
        shown = [json.loads(text)]
    except ValueError:
        shown = [json.loads(line) for line in text.splitlines() if line.strip()]
    for each in shown[0] if isinstance(shown[0], list) else shown:
        [reader] = [read for keys, read in READERS if keys & each.keys()][:1] or [None]
        assert reader is not None, f"no reader is known for the keys {', '.join(each)}; add one to READERS"
        reader(each)


def _read_problem(tree: dict[str, Any]) -> None:
    whole = {"tests": [{"input": "1\n", "output": "1\n"}], **tree} if tree.keys() <= {"checker", "limits"} else tree
    assert read_problem(json.dumps(whole), "all").tests


def _read_row(row: dict[str, Any]) -> None:
    config = make_config(None, model="dojang-tiny", dataset=[row], eval_dataset=[row])
    assert len(config.data.read("train")) == 1


READERS: list[tuple[set[str], Callable[[dict[str, Any]], None]]] = [
    ({"tests", "public", "private", "calls", "checker", "limits"}, _read_problem),
    ({"prompt", "question", "messages", "data_source"}, _read_row),
]
"""Keys that tell what is shown, and its reader."""


def check_program(text: str) -> None:
    """Compiles a C++ program in the sandbox; one of the corpus (`// expect: OUTCOME`) must have its outcome."""
    judgement = dojang.judge_program(text, [("", "")], "cpp17")
    assert judgement.outcome is not Outcome.COMPILE_ERROR, judgement.detail
    headers = dict(re.findall(r"^// (\w+): (\w+)", text, re.MULTILINE))
    if "expect" in headers and headers.get("arch", platform.machine()) == platform.machine():
        assert judgement.outcome == headers["expect"], judgement.detail
