"""Lists every setting with its type, default and help: for `dojang train --keys` and the documentation.

The help text is the attribute docstring of the field.
"""

import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dojang.config.run_config import RunConfig, sections

__all__ = ["Key", "key_lines", "keys"]


@dataclass(frozen=True, slots=True)
class Key:
    """One setting."""

    name: str
    only: str
    """Choices of `name` that have this setting, e.g. data.name=gsm8k; empty if all have it."""
    kind: str
    default: str
    help: str


def keys(model: type[BaseModel] = RunConfig, prefix: str = "", only: str = "") -> Iterator[Key]:
    """Yields all settings below a section, in order. A setting that several choices share appears once."""
    for name, field in model.model_fields.items():
        members = sections(field.annotation)
        if len(members) > 1:
            yield from _merged(members, f"{prefix}{name}.")
        elif members:
            yield from keys(members[0], f"{prefix}{name}.", only)
        elif named := _named_section(field.annotation):
            yield Key(prefix + name, only, "mapping of names", _default(field), field.description or "")
            yield from _plain(named, f"{prefix}{name}.NAME.")
        else:
            yield Key(prefix + name, only, _kind(field.annotation), _default(field), field.description or "")


def _named_section(annotation: Any) -> type[BaseModel] | None:
    """Section type of a mapping from names to sections; None for other types."""
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) is dict and isinstance(inner[1], type) and issubclass(inner[1], BaseModel):
        return inner[1]
    return None


def _plain(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    """Yields all settings of a section; of nested choices of sections, described elsewhere, only the name."""
    for name, field in model.model_fields.items():
        choice = len(sections(field.annotation)) > 1
        kind = "as the section of that name" if choice else _kind(field.annotation)
        yield Key(prefix + name, "", kind, _default(field), field.description or "")


def _merged(members: Sequence[type[BaseModel]], prefix: str) -> Iterator[Key]:
    having: dict[Key, list[str]] = {}
    for member in members:
        for key in keys(member, prefix):
            having.setdefault(key, []).append(str(member.model_fields["name"].default))
    named = [replace(key, only=f"{prefix}name={', '.join(tags)}") for key, tags in having.items()]
    order = list(dict.fromkeys(key.only for key in named))
    yield from sorted(named, key=lambda key: order.index(key.only))


def key_lines() -> Iterator[str]:
    """Yields the settings as lines for a terminal."""
    for key in keys():
        where = f"  [only with {key.only}]" if key.only and not key.only.startswith(f"{key.name}=") else ""
        yield f"{key.name}: {key.kind} = {key.default}{where}"
        if key.help:
            yield f"    {' '.join(key.help.split())}"


def _kind(annotation: Any) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " | ".join(str(choice) for choice in inner)
    if origin is typing.Annotated:  # drops pydantic's limits
        return _kind(inner[0])
    if origin in (types.UnionType, typing.Union):
        return " | ".join("none" if each is types.NoneType else _kind(each) for each in inner)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and "name" in annotation.model_fields:
        return str(annotation.model_fields["name"].default)
    if origin is not None:
        return f"{origin.__name__}[{', '.join('...' if each is ... else _kind(each) for each in inner)}]"
    return str(getattr(annotation, "__name__", annotation))


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else str(field.get_default(call_default_factory=True))
