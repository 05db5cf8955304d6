"""Runs the Python of a page: in order, with the names of the blocks before it, as a reader would in a notebook.

Programs that need what is not installed here are compiled, and every name, attribute and keyword of dojang in them is
looked up: see NOT_HERE.
"""

import ast
import asyncio
import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from stand_ins import ABSOLUTE

import dojang
from dojang.judge.languages import Language

__all__ = ["NOT_HERE", "check_python", "run_python"]

NOT_HERE = {
    "from trl import": "TRL; tests/with_trl trains with the same rewards",
    "import trl": "TRL",
    "VllmEngine(": "vLLM; tests/vllm starts such an engine",
    "RemoteEngine(": "a server; tests/vllm starts one",
    "my_connection": "a connection of the reader's",
    "pandas.": "pandas",
    "import pandas": "pandas",
    "import ray": "Ray; tests/on_ray runs it",
    "import boto3": "an account of AWS",
    "self.client = connect(": "the client of another tracker",
}
"""Texts of programs that are only looked at, and what these would need."""

_SMALLER = (
    (r"smollm2-135m-instruct|qwen2\.5-coder-1\.5b-instruct", "dojang-tiny"),
    (r"\bsteps=\d+", "steps=1"),
    (r"\bfor step in range\(\d+\)", "for step in range(1)"),
)
_SMALL_ROLLOUT = {"prompts_per_step": 2, "group_size": 2, "max_tokens": 8}


def _right(completions: list[str], answer: list[Any], **_: Any) -> list[float]:
    return [float(str(wanted) in text) for text, wanted in zip(completions, answer, strict=True)]


STAND_INS: dict[str, Any] = {
    "rows": [{"prompt": f"What is {a} + {a}?", "answer": str(2 * a)} for a in range(10, 40)],
    "my_reward": _right,
    "Language": Language,
}
"""Names that a page uses for what the reader has."""


def run_python(text: str, names: dict[str, Any]) -> None:
    """Runs a block, made small, with the names that the page has defined so far."""
    for large, small in _SMALLER:
        text = re.sub(large, small, text)
    text = ABSOLUTE.sub("root/", text)
    for name, stand_in in STAND_INS.items():
        names.setdefault(name, stand_in)
    names.setdefault("__name__", "__main__")
    code = compile(_whole(text), "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with patch.object(dojang, "train", _small_train(dojang.train)), patch("builtins.input", lambda *_: ""):
        made = eval(code, names)  # a coroutine, if the block awaits
        if inspect.iscoroutine(made):
            asyncio.run(made)


def check_python(text: str) -> None:
    """Compiles a block and looks up what it uses of dojang: imports, attributes, keywords of calls."""
    tree = compile(_whole(text), "page", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dojang":
            module = importlib.import_module(node.module or "")
            for each in node.names:
                names[each.asname or each.name] = _attribute(module, each.name)
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] == "dojang":
                    importlib.import_module(each.name)
                    names["dojang"] = dojang
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            _resolved(node, names)
        elif isinstance(node, ast.Call):
            _check_call(node, names)


def _whole(text: str) -> str:
    """The block as a program: an entry of a dictionary gets its braces."""
    try:
        compile(text, "page", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return f"{{\n{text}\n}}"
    return text


def _check_call(node: ast.Call, names: Mapping[str, Any]) -> None:
    called = _resolved(node.func, names)
    if called is None:
        return
    parameters = inspect.signature(called).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    known = {each.name for each in parameters}
    for each in node.keywords:
        assert each.arg is None or each.arg in known, f"{ast.unparse(node.func)} has no argument {each.arg}"


def _resolved(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The object of dojang that an expression names; None if it is something else."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _resolved(node.value, names)
        return None if owner is None else _attribute(owner, node.attr)
    return None


def _attribute(owner: Any, name: str) -> Any:
    if inspect.ismodule(owner) and not hasattr(owner, name):
        try:
            return importlib.import_module(f"{owner.__name__}.{name}")
        except ModuleNotFoundError:
            raise AssertionError(f"{owner.__name__} has no {name}") from None
    assert hasattr(owner, name), f"{owner!r} has no {name}"
    return getattr(owner, name)


def _small_train(train: Any) -> Any:
    def small(*given: Any, **more: Any) -> Any:
        more["rollout"] = {**more.get("rollout", {}), **_SMALL_ROLLOUT}
        more["eval"] = {**more.get("eval", {}), "problems": 2}
        return train(*given, **more)

    return small
