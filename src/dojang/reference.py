"""Every setting, with its type, default and help: for `dojang train --keys` and the documentation.

The text is the attribute docstring beside the field, so there is one place to keep it true.
"""

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dojang.config import RunConfig, sections

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
        members = sections(field.annotation)
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


def _kind(annotation: Any) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " | ".join(str(choice) for choice in inner)
    if origin is typing.Annotated:  # the limits are pydantic's business
        return _kind(inner[0])
    if origin is not None:
        return f"{origin.__name__}[{', '.join('...' if each is ... else _kind(each) for each in inner)}]"
    return str(getattr(annotation, "__name__", annotation))


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else str(field.get_default(call_default_factory=True))
