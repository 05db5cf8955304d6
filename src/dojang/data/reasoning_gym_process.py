"""Process that generates problems with reasoning-gym (reasoning_gym.py): a request in, problems out, both JSON.

    {"generators": {"maze": {"weight": 1, "settings": {}}}, "seed": 0, "size": 100}
    {"system": "...", "problems": [{"generator": "maze", "question": "...", "entry": "{...}"}]}   or {"error": "..."}

An entry is a Python literal: scoring one that went through JSON fails where tuples and numbered keys matter.
"""

import ast
import ctypes
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

__all__ = ["main"]

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class _Unusable(Exception):
    """Names the generator or setting, and the remedy."""


def main() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    order = json.load(sys.stdin)
    try:
        with redirect_stdout(sys.stderr):  # output of a generator is not a problem
            made = _made(order["generators"], order["seed"], order["size"])
    except _Unusable as error:
        made = {"error": str(error)}
    json.dump(made, sys.stdout)


def _made(generators: Mapping[str, Mapping[str, Any]], seed: int, size: int) -> dict[str, Any]:
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import create_dataset
    from reasoning_gym.utils import SYSTEM_PROMPTS

    if wrong := [said for name, each in generators.items() for said in _complaints(name, each["settings"])]:
        raise _Unusable("\n".join(wrong))
    specs = [DatasetSpec(name, each["weight"], each["settings"]) for name, each in generators.items()]
    try:
        mixed = create_dataset("composite", seed=seed, size=size, datasets=specs)
        entries = [mixed[place] for place in range(size)]
    except Exception as error:
        given = {name: each["settings"] for name, each in generators.items()}
        raise _Unusable(
            f"reasoning-gym cannot make problems with {given}: {type(error).__name__}: {error}; change the settings"
        ) from error
    return {"system": SYSTEM_PROMPTS["default"].strip(), "problems": list(map(_problem, entries))}


def _complaints(name: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields errors: an unknown generator, or invalid settings."""
    from reasoning_gym.factory import DATASETS, create_dataset

    known = sorted(DATASETS.keys() - {"composite"})  # data.generators does the same
    if name not in known:
        near = get_close_matches(name.lower(), known, n=3)
        meant = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(known)}"
        yield f"data.generators: reasoning-gym has no generator {name!r}; {meant}"
        return
    options = sorted({each.name for each in fields(DATASETS[name][1])} - {"seed", "size"})
    for key in settings.keys() - options:
        near = get_close_matches(key.lower(), options, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        yield f"data.generators.{name}.settings: unknown key {key!r}; {meant}{name} takes {', '.join(options)}"
    try:
        create_dataset(name, **{key: settings[key] for key in settings if key in options})
    except Exception as error:  # assertions, mostly
        why = str(error) or type(error).__name__
        yield f"data.generators.{name}.settings: reasoning-gym refuses {dict(settings)}: {why}"


def _problem(entry: Mapping[str, Any]) -> dict[str, str]:
    import numpy as np

    name = entry["metadata"]["source_dataset"]
    with np.printoptions(legacy="1.25"):  # 0.5, not np.float64(0.5)
        written = repr(entry)
    try:
        ast.literal_eval(written)
    except (ValueError, SyntaxError) as error:
        raise _Unusable(
            f"a problem of reasoning-gym's {name} is not plain data and cannot be stored: {error}"
        ) from error
    return {"generator": name, "question": str(entry["question"]), "entry": written}


if __name__ == "__main__":
    main()
