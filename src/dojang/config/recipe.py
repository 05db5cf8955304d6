"""Loads a RunConfig from a recipe (YAML) and dotted key=value overrides.

It reports all errors at once, each with the key as the user writes it and a remedy.
"""

import copy
import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from dojang.config.key_docs import keys as all_keys
from dojang.config.overrides import annotation_at, apply_overrides, element_of, is_number, remove, tag_of
from dojang.config.renamed_keys import RENAMED
from dojang.config.run_config import STREAM_ALGORITHM, RunConfig, Task, sections, stream_chooses_algorithm
from dojang.core.errors import ConfigError
from dojang.core.section import flatten
from dojang.judge.config import JudgeConfig

__all__ = ["differences", "listing", "load", "read", "read_section", "resolve", "shipped", "to_tree", "to_yaml"]

_PATHS = (("model", "name"), ("tester", "model"), ("data", "train"), ("data", "test"), ("data", "path"))
"""Settings that may be local paths."""


def shipped() -> list[str]:
    """Names of the recipes that come with dojang."""
    folder = resources.files("dojang") / "recipes"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def listing() -> str:
    """Shipped recipes, each with the first sentence of its comment."""
    names = shipped()
    width = max(map(len, names))
    return "\n".join(f"  {name:<{width}}  {_text(name).splitlines()[0].removeprefix('# ')}" for name in names)


def load(recipe: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Loads the configuration of a shipped recipe or a YAML file, with overrides."""
    return resolve(recipe, read(recipe), overrides)


def read(recipe: str) -> dict[str, Any]:
    """Reads the settings of a shipped recipe or a YAML file as written, unchecked."""
    return _parse(recipe, _read(recipe))


def resolve(recipe: str, tree: dict[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """Validates a tree of settings with overrides; `recipe` is the name in error messages."""
    apply_overrides(tree, overrides)
    mistakes = list(_truth_values(tree))
    try:
        config = RunConfig.model_validate(tree)
        if not mistakes:
            return config
    except ValidationError as error:
        mistakes += [_with_chosen_algorithm(line, tree) for line in _mistakes(error)]
        mistakes += _hidden_mistakes(tree, error)
    listing = "\n".join(f"  - {line}" for line in mistakes)
    count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    raise ConfigError(f"{count} in the configuration of {recipe!r}:\n{listing}")


def to_yaml(config: RunConfig) -> str:
    """Resolved configuration as YAML; `load` reads it back."""
    return yaml.safe_dump(to_tree(config), sort_keys=False)


def to_tree(config: RunConfig, *, absolute: bool = False) -> dict[str, Any]:
    """Resolved configuration as plain values. `absolute`: with absolute paths of local models and data, for processes
    that start elsewhere."""
    tree = config.model_dump(mode="json")
    for section, key in _PATHS if absolute else ():
        value = (tree.get(section) or {}).get(key)
        if isinstance(value, str) and value and not os.path.isabs(value) and os.path.exists(value):
            tree[section][key] = os.path.abspath(value)
    return tree


def differences(saved: RunConfig, wanted: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, with both values. A default that is written out is no difference."""
    old, new = (dict(flatten(config.model_dump(mode="json"))) for config in (saved, wanted))
    changed = {key: (old.get(key), new.get(key)) for key in {**old, **new} if _differ(old.get(key), new.get(key))}
    if saved.loop.staleness == wanted.loop.staleness:
        changed.pop("loop.lag", None)
    return changed


def _differ(old: Any, new: Any) -> bool:
    """Python's 1 == True, but a number of layers is not a switch."""
    return old != new or isinstance(old, bool) != isinstance(new, bool)


def read_section(key: Literal["task", "judge"], tree: Any) -> Any:
    """Validates one section of a recipe."""
    kind: Any = Task if key == "task" else JudgeConfig
    try:
        return TypeAdapter(kind).validate_python(tree)
    except ValidationError as error:
        raise ConfigError("; ".join(_mistakes(error, key))) from None


def _read(recipe: str) -> str:
    if recipe in shipped():
        return _text(recipe)
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml"):
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"recipe file {recipe} does not exist") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read recipe file {recipe}: {error}") from None
    if (path / "config.yaml").is_file():
        raise ConfigError(
            f"{recipe} is a run directory, not a recipe; continue the run with `dojang resume {recipe}`, or start a "
            f"new one with its settings: {path / 'config.yaml'}"
        )
    near = [f"{recipe}.yaml"] if path.name and path.with_name(f"{path.name}.yaml").is_file() else []
    near += difflib.get_close_matches(recipe, shipped(), n=1, cutoff=0.5) or [
        name for name in shipped() if len(recipe) > 1 and recipe in name
    ]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(
        f"unknown recipe {recipe!r}.{hint} Shipped recipes: {', '.join(shipped())}; or give the path of a .yaml file"
    )


def _text(name: str) -> str:
    return (resources.files("dojang") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def _parse(recipe: str, text: str) -> dict[str, Any]:
    try:
        tree = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"recipe {recipe!r} is not valid YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"recipe {recipe!r} must be a mapping of keys to values, not {type(tree).__name__}")
    return {key: value for key, value in tree.items() if value is not None}  # an empty section means its defaults


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]  # `<<` may repeat keys
        seen: list[Any] = []  # a list: a key may be unhashable, which the base class reports
        for each in keys:
            key = self.construct_object(each, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", each.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep)


def _truth_values(tree: dict[str, Any]) -> Iterator[str]:
    """Numbers that are given as true or false, which pydantic would read as 1 and 0."""
    for key, value in flatten(tree):
        if isinstance(value, bool) and is_number(annotation_at(key.split("."), tree)):
            yield f"{key}: input should be a number, but it is {str(value).lower()}"


def _mistakes(error: ValidationError, *section: str) -> list[str]:
    """Explains the errors of a configuration, or of one section of it."""
    for detail in (found := error.errors()):
        detail["loc"] = (*section, *detail["loc"])
    return list(dict.fromkeys(line for detail in found for line in _explain(detail)))


def _with_chosen_algorithm(line: str, tree: dict[str, Any]) -> str:
    """Adds to a mistake in algo.KEY that loop.mode=stream chose the algorithm, and how to choose the usual one."""
    section, _, key = line.partition(":")[0].partition(".")
    given, usual = tree.get("algo"), RunConfig.model_fields["algo"].default
    if section != "algo" or not isinstance(given, dict) or not stream_chooses_algorithm(tree):
        return line
    chosen = f"{line} (algo.name={STREAM_ALGORITHM} was chosen by loop.mode=stream, as none was given)"
    try:
        type(usual).model_validate({key: given.get(key)})
    except ValidationError:
        return chosen if "no such key" in line else line
    return f"{chosen}; write algo.name={usual.name} algo.{key}={given[key]}"


def _hidden_mistakes(tree: dict[str, Any], error: ValidationError) -> list[str]:
    """Errors across sections, which pydantic reports only after values that are wrong by themselves are removed."""
    cleaned = copy.deepcopy(tree)
    for detail in error.errors():
        keys, _ = _locate(detail["loc"])
        if not keys or isinstance(remove(cleaned, keys), Mapping):
            return []  # an error across sections, or of a whole section: the defaults in its place are not the user's
    try:
        RunConfig.model_validate(cleaned)
    except ValidationError as deeper:
        return [line for detail in deeper.errors() if not detail["loc"] for line in _explain(detail)]
    return []


def _explain(detail: ErrorDetails) -> Iterator[str]:
    """Explains one validation error in one or more lines, with a remedy."""
    keys, section = _locate(detail["loc"])
    key = ".".join(keys)
    if detail["type"] == "extra_forbidden" and key in RENAMED:
        yield f"{key}: renamed to {RENAMED[key]}"
    elif detail["type"] == "extra_forbidden":
        yield f"{key}: no such key; {_other_key(keys, section)}"
    elif detail["type"] == "missing":
        yield f"{key}: must be given"
    elif detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        yield f"{key}.name: {_wrong_choice(keys, detail['input'])}"
    elif detail["type"] == "value_error":
        for line in str(detail["ctx"]["error"]).splitlines():
            yield f"{key}: {line}" if key else line
    elif detail["input"] is None:
        yield f"{key}: {_lower(detail['msg'])}, but it is null; leave it out" + _quoted_null(key, detail["type"])
    elif detail["type"] in ("list_type", "tuple_type") and isinstance(detail["input"], str):
        yield f"{key}: input should be a list, such as '{key}=[{json.dumps(detail['input'])}]', but it is a text"
    else:
        yield f"{key}: {_lower(detail['msg'])}, but it is {detail['input']!r}"


def _quoted_null(key: str, kind: str) -> str:
    """Remedy for the text null, which YAML reads as no value."""
    return f", or quote the text: {key}='\"null\"'" if kind == "string_type" else ""


def _other_key(keys: Sequence[str], section: Sequence[str]) -> str:
    """Remedy for an unknown key: the keys of that name elsewhere, else the nearest in its section, else all there."""
    key, last = ".".join(keys), keys[-1]
    known = [each for each in all_keys() if each.name.split(".")[-1] == last and "NAME" not in each.name.split(".")]
    if choices := [each.only for each in known if each.name == key]:
        return f"it is a setting of {' and '.join(choices)}"
    renamed = [new for old, new in RENAMED.items() if old.split(".")[-1] == last]
    if found := list(dict.fromkeys([*(each.name for each in known), *renamed])):
        found.sort(key=lambda name: (name.count("."), name.startswith("tester.")))  # of a run with two models
        return f"did you mean {' or '.join(found)}?"
    near = difflib.get_close_matches(last, section, n=1, cutoff=0.5)
    return f"did you mean {'.'.join([*keys[:-1], near[0]])}?" if near else f"known: {', '.join(section)}"


def _wrong_choice(keys: Sequence[str], given: Mapping[str, Any]) -> str:
    names = [str(tag_of(section)) for section in sections(annotation_at(keys))]
    choices = f"one of {', '.join(names)}"
    if "name" not in given:
        return f"must be given: {choices}"
    near = difflib.get_close_matches(str(given["name"]), names, n=1, cutoff=0.5)
    return f"{given['name']!r} is not {choices}" + (f"; did you mean {near[0]}?" if near else "")


def _locate(location: tuple[int | str, ...]) -> tuple[list[str], list[str]]:
    """Keys as the user wrote them (without pydantic's union tags), and the keys known in that section."""
    keys: list[str] = []
    known: list[str] = []
    here: Any = RunConfig
    for part in location:
        members = {tag_of(member): member for member in sections(here)}
        if len(members) > 1 and part in members:
            here = members[part]
            continue
        keys.append(str(part))
        model = next(iter(members.values()), None)
        if model is None:
            here = element_of(here)
            continue
        known = list(model.model_fields)
        field = model.model_fields.get(str(part))
        here = field.annotation if field else None
    return keys, known


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
