"""From what a user typed to a RunConfig: a recipe (YAML) plus dotted key=value overrides.

All mistakes are reported at once, each with the key as the user would write it and what to do about it.
"""

import copy
import difflib
import typing
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dojang.config.renamed_keys import RENAMED
from dojang.config.run_config import RunConfig, sections
from dojang.core.errors import ConfigError
from dojang.core.section import flatten

__all__ = ["differences", "load", "read", "resolve", "shipped", "to_tree", "to_yaml"]


_EXCLUSIVE = (("steps", "epochs"), ("train.warmup_steps", "train.warmup_ratio"))


def shipped() -> list[str]:
    """Names of the recipes that come with dojang."""
    folder = resources.files("dojang") / "recipes"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def load(recipe: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a shipped recipe or a YAML file, with overrides applied."""
    return resolve(recipe, read(recipe), overrides)


def read(recipe: str) -> dict[str, Any]:
    """The settings of a shipped recipe or a YAML file as they are written, unchecked."""
    return _parse(recipe, _read(recipe))


def resolve(recipe: str, tree: dict[str, Any], overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in a tree of settings, with overrides applied; the name is what mistakes are said to be in."""
    for override in overrides:
        _override(tree, override)
    _drop_replaced(tree, [override.partition("=")[0] for override in overrides])
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        mistakes = [*_mistakes(error), *_hidden_mistakes(tree, error)]
        listing = "\n".join(f"  - {line}" for line in mistakes)
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        raise ConfigError(f"{count} in the configuration of {recipe!r}:\n{listing}") from None


def to_yaml(config: RunConfig) -> str:
    """The whole resolved configuration; `load` reads it back."""
    return yaml.safe_dump(to_tree(config), sort_keys=False)


def to_tree(config: RunConfig) -> dict[str, Any]:
    """The whole resolved configuration as plain values."""
    return config.model_dump(mode="json")


def differences(saved: RunConfig, wanted: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, with both."""
    old, new = (dict(flatten(config.model_dump(mode="json"))) for config in (saved, wanted))
    return {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}


def _read(recipe: str) -> str:
    if recipe in shipped():
        return (resources.files("dojang") / "recipes" / f"{recipe}.yaml").read_text(encoding="utf-8")
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml"):
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"recipe file {recipe} does not exist") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"recipe file {recipe} cannot be read: {error}") from None
    near = difflib.get_close_matches(recipe, shipped(), n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ConfigError(
        f"there is no recipe {recipe!r}.{hint} Shipped recipes: {', '.join(shipped())}; or give the path of a "
        ".yaml file"
    )


def _parse(recipe: str, text: str) -> dict[str, Any]:
    try:
        tree = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"recipe {recipe!r} is not valid YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"recipe {recipe!r} must be a mapping of keys to values, not {type(tree).__name__}")
    return {key: value for key, value in tree.items() if value is not None}  # an empty section has its defaults


class _Loader(yaml.SafeLoader):
    """YAML lets a key be given twice and forgets the first; here that is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]  # `<<` may repeat keys
        seen = [self.construct_object(key, deep=True) for key in keys]
        for key in seen:
            if seen.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _override(tree: dict[str, Any], override: str) -> None:
    dotted, equals, value = override.partition("=")
    keys = dotted.split(".")
    if not equals or not all(keys):
        raise ConfigError(f"override {override!r} must have the form key=value or section.key=value")
    if isinstance(tree.get("runtime"), str):  # short for its name, also beside keys of its own
        tree["runtime"] = {"name": tree["runtime"]}
    said = tree.get("runtime", {})
    if keys == ["runtime"] and isinstance(said, dict) and said.get("name", value) == value and value[:1] != "{":
        keys = ["runtime", "name"]  # what was said of it before still holds
    *path, last = keys
    for depth, section in enumerate(path, start=1):
        if tree.get(section) is None:
            tree[section] = _default_mapping(keys[:depth])
        inner = tree[section]
        if not isinstance(inner, dict):
            raise ConfigError(f"override {override!r}: {section!r} is a value, not a section with keys of its own")
        tree = inner
    try:
        tree[last] = yaml.safe_load(value)
    except yaml.YAMLError:
        tree[last] = value


def _drop_replaced(tree: dict[str, Any], given: Sequence[str]) -> None:
    """An override of one of two settings that exclude each other replaces the recipe's other one."""
    for pair in _EXCLUSIVE:
        for key, other in (pair, pair[::-1]):
            if key in given and other not in given:
                _remove(tree, other.split("."))


def _default_mapping(keys: Sequence[str]) -> dict[str, Any]:
    """What a key changes a part of: `task.rewards.correct=2` leaves the other default rewards as they are."""
    here: Any = RunConfig.model_fields[keys[0]].default if keys[0] in RunConfig.model_fields else None
    for key in keys[1:]:
        here = getattr(here, key, None)
    return dict(here) if isinstance(here, dict) else {}


def _mistakes(error: ValidationError) -> list[str]:
    return list(dict.fromkeys(line for detail in error.errors() for line in _explain(detail)))


def _hidden_mistakes(tree: dict[str, Any], error: ValidationError) -> list[str]:
    """Rooms that disagree: that shows only once the values that are wrong by themselves are out of the way."""
    cleaned = copy.deepcopy(tree)
    for detail in error.errors():
        keys, _ = _locate(detail["loc"])
        if not keys:
            return []  # this is the disagreement itself
        _remove(cleaned, keys)
    try:
        RunConfig.model_validate(cleaned)
    except ValidationError as deeper:
        return [line for detail in deeper.errors() if not detail["loc"] for line in _explain(detail)]
    return []


def _remove(tree: dict[str, Any], keys: Sequence[str]) -> None:
    """Delete what the keys lead to, or the last thing on the way that is not a section."""
    *path, last = keys
    for section in path:
        inner = tree.get(section)
        if not isinstance(inner, dict):
            last = section
            break
        tree = inner
    tree.pop(last, None)


def _explain(detail: ErrorDetails) -> Iterator[str]:
    """One mistake as one or more sentences a user can act on."""
    keys, section = _locate(detail["loc"])
    key = ".".join(keys)
    if detail["type"] == "extra_forbidden" and key in RENAMED:
        yield f"{key}: renamed to {RENAMED[key]}"
    elif detail["type"] == "extra_forbidden":
        near = difflib.get_close_matches(keys[-1], section, n=1, cutoff=0.5)
        remedy = f"did you mean {'.'.join([*keys[:-1], near[0]])}?" if near else f"known: {', '.join(section)}"
        yield f"{key}: no such key; {remedy}"
    elif detail["type"] == "missing":
        yield f"{key}: must be given"
    elif detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        yield f"{key}.name: {_wrong_choice(keys, detail['input'])}"
    elif detail["type"] == "value_error":
        for line in str(detail["ctx"]["error"]).splitlines():
            yield f"{key}: {line}" if key else line
    else:
        yield f"{key}: {_lower(detail['msg'])}, but it is {detail['input']!r}"


def _wrong_choice(keys: Sequence[str], given: Mapping[str, Any]) -> str:
    names = [str(_tag(section)) for section in sections(_annotation(keys))]
    choices = f"one of {', '.join(names)}"
    if "name" not in given:
        return f"must be given: {choices}"
    near = difflib.get_close_matches(str(given["name"]), names, n=1, cutoff=0.5)
    return f"{given['name']!r} is not {choices}" + (f"; did you mean {near[0]}?" if near else "")


def _annotation(keys: Sequence[str]) -> Any:
    """The type of what the keys lead to."""
    here: Any = RunConfig
    for key in keys:
        fields = [section.model_fields[key] for section in sections(here) if key in section.model_fields]
        here = fields[0].annotation if fields else _element(here)
    return here


def _locate(location: tuple[int | str, ...]) -> tuple[list[str], list[str]]:
    """The keys a user wrote (without the tags pydantic adds inside unions), and the keys known at that place."""
    keys: list[str] = []
    known: list[str] = []
    here: Any = RunConfig
    for part in location:
        members = {_tag(member): member for member in sections(here)}
        if len(members) > 1 and part in members:
            here = members[part]
            continue
        keys.append(str(part))
        model = next(iter(members.values()), None)
        if model is None:
            here = _element(here)
            continue
        known = list(model.model_fields)
        field = model.model_fields.get(str(part))
        here = field.annotation if field else None
    return keys, known


def _element(annotation: Any) -> Any:
    """What a list or a dictionary holds."""
    inner = [each for each in typing.get_args(annotation) if each is not ...]
    held = inner[-1] if inner and typing.get_origin(annotation) in (tuple, list, dict) else None
    return typing.get_args(held)[0] if typing.get_origin(held) is typing.Annotated else held


def _tag(model: type[BaseModel]) -> object:
    field = model.model_fields.get("name")
    return field.default if field else None


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
