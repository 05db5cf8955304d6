"""What every section of a configuration is built on, and the one way to name an object in user code.

Each room declares its own section beside the code that reads it; `config.py` assembles them.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dojang.core.errors import ConfigError

__all__ = ["Section", "complaints", "flatten", "load_object", "make_object"]


class Section(BaseModel):
    """A frozen group of settings: unknown keys are errors, and attribute docstrings are the help text."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """A section that only has another default for a setting keeps its help text."""
        for base in cls.__mro__[1:]:
            for name, field in cls.model_fields.items():
                if issubclass(base, BaseModel) and name in base.model_fields:
                    field.description = field.description or base.model_fields[name].description


def complaints(error: ValidationError) -> list[str]:
    """What is wrong with settings or data that did not come from a recipe: key and reason, one line each."""
    return [
        ": ".join(filter(None, [".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, ")]))
        for each in error.errors(include_url=False)
    ]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their dotted keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def load_object(spec: str, key: str) -> Any:
    """Import what `package.module:object` names; `key` is where the user wrote it."""
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{key}={spec!r} must have the form package.module:object")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{key}={spec!r}: cannot import {module_name!r} ({error}); install it, or add its folder to PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything while it is imported
        raise ConfigError(
            f"{key}={spec!r}: importing {module_name!r} raised {type(error).__name__}: {error}"
        ) from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise ConfigError(f"{key}={spec!r}: module {module_name!r} has no {name!r}") from None


def make_object(spec: str, key: str, *arguments: Any, **options: Any) -> Any:
    """Call what `package.module:object` names."""
    maker = load_object(spec, key)
    try:
        return maker(*arguments, **options)
    except Exception as error:
        raise ConfigError(f"{key}={spec!r}: calling it raised {type(error).__name__}: {error}") from error
