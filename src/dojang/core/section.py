"""Base class of configuration sections, and loading of user objects by `package.module:object`.

Each package declares its section beside the code that uses it; config/run_config.py assembles them.
"""

import importlib
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from dojang.core import in_process
from dojang.core.error_list import MissingPackage
from dojang.core.errors import ConfigError
from dojang.core.user_code import describe_exception

__all__ = ["LocalPath", "Requirement", "Section", "complaints", "flatten", "load_object", "make_object"]


LocalPath = Annotated[Path, AfterValidator(lambda path: Path(os.path.expanduser(path)))]
"""Setting with a local path. A shell leaves the ~ of data.path=~/gsm8k as it is."""


class Requirement(NamedTuple):
    """Optional packages that a setting needs."""

    setting: str
    """The setting as the user writes it."""
    packages: tuple[str, ...]
    """Import names."""
    extra: str
    """Extra of dojang that installs them."""

    def check(self) -> None:
        """Raises MissingPackage if one is not installed on this machine."""
        if missing := [name for name in self.packages if find_spec(name) is None]:
            raise MissingPackage(
                f"{self.setting} needs {' and '.join(missing)}, not installed here: pip install 'dojang[{self.extra}]'"
            )


class Section(BaseModel):
    """A frozen group of settings. Unknown keys are errors; attribute docstrings are the help text."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    def required_packages(self) -> Iterator[Requirement]:
        """Optional packages that these settings need; sections inside are asked themselves."""
        yield from ()

    def check_packages(self) -> None:
        """Raises MissingPackage if a package that these settings need is not installed."""
        for each in self.required_packages():
            each.check()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Copies the help text of settings that a subclass redefines with another default."""
        for base in cls.__mro__[1:]:
            for name, field in cls.model_fields.items():
                if issubclass(base, BaseModel) and name in base.model_fields:
                    field.description = field.description or base.model_fields[name].description


def complaints(error: ValidationError) -> list[str]:
    """Formats validation errors of settings outside a recipe: one line each, with key and reason."""
    return [
        ": ".join(filter(None, [".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, ")]))
        for each in error.errors(include_url=False)
    ]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields settings by their dotted keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def load_object(spec: str, key: str) -> Any:
    """Imports the object that `package.module:object` names; `key` is the setting, for errors."""
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{key}={spec!r} must have the form package.module:object")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{key}={spec!r}: cannot import {module_name!r} ({error}); install it, or add its folder to PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything during its import
        raise ConfigError(f"{key}={spec!r}: importing {module_name!r} raised {describe_exception(error)}") from error
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise ConfigError(f"{key}={spec!r}: {_missing(module_name, name, error)}") from None


def _missing(module_name: str, name: str, error: AttributeError) -> str:
    return str(error) if module_name == in_process.__name__ else f"module {module_name!r} has no {name!r}"


def make_object(spec: str, key: str, *arguments: Any, **options: Any) -> Any:
    """Calls the object that `package.module:object` names."""
    maker = load_object(spec, key)
    try:
        return maker(*arguments, **options)
    except Exception as error:
        raise ConfigError(f"{key}={spec!r}: calling it raised {describe_exception(error)}") from error
