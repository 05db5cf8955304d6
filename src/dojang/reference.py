"""Every setting, with its type, default and help: for `dojang train --keys` and the documentation.

The text is the attribute docstring beside the field, so there is one place to keep it true.
"""

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dojang.config import RunConfig

__all__ = ["Key", "key_lines", "keys"]


@dataclass(frozen=True, slots=True)
class Key:
    """One setting."""

    name: str
    only: str
    """The choice of section it belongs to, e.g. data.name=gsm8k; empty if it is always there."""
    kind: str
    default: str
    help: str


def keys(model: type[BaseModel] = RunConfig, prefix: str = "", only: str = "") -> Iterator[Key]:
    """All settings below a section, in order."""
    for name, field in model.model_fields.items():
        members = _sections(field.annotation)
        for member in members:
            tag = member.model_fields["name"].default if len(members) > 1 else ""
            yield from keys(member, f"{prefix}{name}.", f"{prefix}{name}.name={tag}" if tag else only)
        if not members:
            yield Key(prefix + name, only, _kind(field.annotation), _default(field), field.description or "")


def key_lines() -> Iterator[str]:
    """For a terminal."""
    for key in keys():
        where = f"  [only with {key.only}]" if key.only and not key.only.startswith(f"{key.name}=") else ""
        yield f"{key.name}: {key.kind} = {key.default}{where}"
        if key.help:
            yield f"    {' '.join(key.help.split())}"


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return [section for member in typing.get_args(annotation) for section in _sections(member)]
    return []


def _kind(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(str(choice) for choice in typing.get_args(annotation))
    if typing.get_origin(annotation) is not None:
        return str(annotation).replace("typing.", "")
    return str(getattr(annotation, "__name__", annotation))


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else str(field.get_default(call_default_factory=True))
