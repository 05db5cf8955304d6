"""Reads the tasks of a taskset of verifiers, in a process with its own interpreter: JSON on stdin and stdout.

    in    {"taskset": {"id": ..., ...}, "most": 1000}
    out   {"tasks": [{"key": ..., "data": {...}, "messages": [["user", "..."], ...]}, ...]}
          or {"missing": "..."} without verifiers, or {"error": "..."}

The interpreter has no dojang: imports the standard library and verifiers only.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
from typing import Any

__all__ = ["main"]


def main() -> None:
    order = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)  # what libraries print is no answer
        json.dump(_read(order["taskset"], order["most"]), answer)


def _read(taskset: dict[str, Any], most: int) -> dict[str, Any]:
    try:
        vf: Any = importlib.import_module("verifiers.v1")
    except ImportError as error:
        return {"missing": str(error)}
    try:
        config = vf.taskset_config_type(taskset["id"]).model_validate(taskset)
        tasks = itertools.islice(iter(vf.load_taskset(config)), most)
        return {"tasks": [_task(each) for each in tasks]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:1000]}


def _task(task: Any) -> dict[str, Any]:
    data = task.data
    messages = [["system", data.system_prompt]] if data.system_prompt else []
    if data.prompt is None:  # the environment opens the conversation
        messages.append(["user", data.description or data.name or f"task {data.idx}"])
    elif isinstance(data.prompt, str):
        messages.append(["user", data.prompt])
    else:
        messages += [[each.role, _text(each.content)] for each in data.prompt]
    return {"key": task.key, "data": data.model_dump(mode="json"), "messages": messages}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(getattr(each, "text", "") for each in content or [])


if __name__ == "__main__":
    main()
