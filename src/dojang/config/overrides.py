"""Applies key=value overrides to a tree of settings.

The value of a text setting is taken as it is written: `data.prompt={question}` and `data.system=no` are text. Quotes of
YAML are still understood: `data.prompt='"first line\\nsecond"'`. Only `null` is never text, unless in such quotes: it
means None for every setting. Values of other settings are YAML.
"""

import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from dojang.config.run_config import RunConfig, sections
from dojang.core.errors import ConfigError

__all__ = ["annotation_at", "apply_overrides", "element_of", "is_number", "parse_value", "remove", "tag_of"]

_EXCLUSIVE = (("steps", "epochs"), ("train.warmup_steps", "train.warmup_ratio"))
_TEXTS = (str, Path)
_SHORT = ("runtime", "rollout.engine")
"""Sections with a short form: `runtime=ray` means `runtime.name=ray`. A new name drops settings it lacks."""


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str]) -> None:
    """Changes the tree in place. Drops a setting if an override sets another one that excludes it."""
    given = [override.partition("=")[0] for override in overrides]
    overrides = [_long_form(override) for override in overrides]
    names = dict(each.split(".name=", 1) for each in overrides if ".name=" in each)
    _expand_short_forms(tree)
    for override in overrides:
        _apply(tree, override, names)
    for pair in _EXCLUSIVE:
        for key, other in (pair, pair[::-1]):
            if key in given and other not in given:
                remove(tree, other.split("."))


def _apply(tree: dict[str, Any], override: str, names: Mapping[str, str]) -> None:
    dotted, equals, value = override.partition("=")
    keys = dotted.split(".")
    if not equals or not all(keys):
        raise ConfigError(f"override {override!r} must have the form key=value or section.key=value")
    if dotted.removesuffix(".name") in _SHORT and keys[-1] == "name":
        _drop_settings_of_others(tree, keys[:-1], value)
    parsed = parse_value(value, annotation_at(keys, tree, names))
    *path, last = keys
    for depth, section in enumerate(path, start=1):
        if tree.get(section) is None:
            tree[section] = _default_mapping(keys[:depth])
        inner = tree[section]
        if not isinstance(inner, dict):
            raise ConfigError(f"override {override!r}: {section!r} is a value, not a section with keys")
        tree = inner
    tree[last] = parsed


def _long_form(override: str) -> str:
    key, _, value = override.partition("=")
    return f"{key}.name={value}" if key in _SHORT and value[:1] != "{" else override


def _expand_short_forms(tree: dict[str, Any]) -> None:
    """Replaces `runtime: ray` with `runtime: {name: ray}`, so that overrides can set its other keys."""
    for dotted in _SHORT:
        *path, last = dotted.split(".")
        section = _value_at(tree, path)
        if isinstance(section, dict) and isinstance(section.get(last), str):
            section[last] = {"name": section[last]}


def _drop_settings_of_others(tree: dict[str, Any], keys: Sequence[str], name: str) -> None:
    """Drops settings of a section that its choice `name` does not have."""
    section = _value_at(tree, keys)
    for choice in sections(annotation_at(keys)) if isinstance(section, dict) else []:
        if tag_of(choice) == name:
            for key in section.keys() - choice.model_fields.keys():
                del section[key]


def _value_at(tree: dict[str, Any], keys: Sequence[str]) -> Any:
    """Value at a key path; None if it is not given."""
    here: Any = tree
    for key in keys:
        here = here.get(key) if isinstance(here, dict) else None
    return here


def parse_value(text: str, annotation: Any) -> Any:
    """Reads the value of a setting of this type: text as it is written, unless in YAML's quotes; others as YAML; `null`
    as None."""
    if text.strip() == "null":
        return None
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # ValueError: a date that does not exist
        return text
    kinds = list(_alternatives(annotation))
    if any(map(_is_text_list, kinds)) and isinstance(value, list):
        return yaml.load(text, Loader=yaml.BaseLoader)  # leaves no, 1 and null as text
    others = [kind for kind in kinds if not _is_text(kind)]
    if len(others) == len(kinds) or (isinstance(value, str) and text.strip()[:1] in ("'", '"')):
        return value
    return value if any(_fits(value, kind) for kind in others) else text


def annotation_at(
    keys: Sequence[str], tree: Mapping[str, Any] | None = None, names: Mapping[str, str] | None = None
) -> Any:
    """Type annotation at a key path: of the choice that `names` or the tree names, else of all choices with the key."""
    here: Any = RunConfig
    given: Any = tree
    for depth, key in enumerate(keys):
        name = (names or {}).get(".".join(keys[:depth])) or (given.get("name") if isinstance(given, Mapping) else None)
        having = [section for section in sections(here) if key in section.model_fields]
        named = [section for section in having if tag_of(section) == name]
        found = [section.model_fields[key].annotation for section in named or having]
        here = typing.Union[tuple(found)] if found else element_of(here)  # noqa: UP007 -- of a list
        given = given.get(key) if isinstance(given, Mapping) else None
    return here


def element_of(annotation: Any) -> Any:
    """Element type of a list or a dictionary."""
    inner = [each for each in typing.get_args(annotation) if each is not ...]
    held = inner[-1] if inner and typing.get_origin(annotation) in (tuple, list, dict) else None
    return typing.get_args(held)[0] if typing.get_origin(held) is typing.Annotated else held


def is_number(annotation: Any) -> bool:
    """Reports whether a setting of this type is a number, and never true or false."""
    kinds = set(_alternatives(annotation))
    return bool(kinds & {int, float}) and bool not in kinds


def tag_of(section: type[BaseModel]) -> object:
    """The `name` that chooses this section of a union."""
    field = section.model_fields.get("name")
    return field.default if field else None


def remove(tree: dict[str, Any], keys: Sequence[str]) -> object:
    """Deletes and returns the value at a key path, or the last value on the way that is not a section."""
    *path, last = keys
    for section in path:
        inner = tree.get(section)
        if not isinstance(inner, dict):
            last = section
            break
        tree = inner
    return tree.pop(last, None)


def _default_mapping(keys: Sequence[str]) -> dict[str, Any]:
    """Default of a mapping that an override changes in part: `task.rewards.correct=2` keeps the other rewards."""
    here: Any = RunConfig.model_fields[keys[0]].default if keys[0] in RunConfig.model_fields else None
    for key in keys[1:]:
        here = getattr(here, key, None)
    return dict(here) if isinstance(here, dict) else {}


def _alternatives(annotation: Any) -> typing.Iterator[Any]:
    """Yields the members of a union, or the type itself."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _alternatives(typing.get_args(annotation)[0])
    elif origin in (types.UnionType, typing.Union):
        for member in typing.get_args(annotation):
            yield from _alternatives(member)
    else:
        yield annotation


def _is_text(kind: Any) -> bool:
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    return kind in _TEXTS or (bool(choices) and all(isinstance(each, str) for each in choices))


def _is_text_list(kind: Any) -> bool:
    return typing.get_origin(kind) in (list, tuple) and all(
        each is ... or all(map(_is_text, _alternatives(each))) for each in typing.get_args(kind)
    )


def _fits(value: Any, kind: Any) -> bool:
    """Reports whether a value of YAML is of this type, which is not text."""
    if kind is Any:
        return not isinstance(value, str)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return isinstance(value, dict)
    kind = typing.get_origin(kind) or kind
    if kind is typing.Literal:
        return not isinstance(value, str)
    accepted: dict[Any, tuple[type, ...]] = {float: (int, float), tuple: (list,)}
    return isinstance(value, accepted.get(kind, kind)) and (kind is bool or not isinstance(value, bool))
