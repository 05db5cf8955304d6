"""Arguments that several commands share, and options that are declared once, as the fields of a dataclass."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

__all__ = ["Overrides", "Recipe", "with_options"]

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a shipped recipe, or a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to override, e.g. train.lr=1e-5.")
]


def with_options(kind: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command: an option for each field of the dataclass `kind` replaces its parameter `options`."""
    hints = get_type_hints(kind, include_extras=True)
    own = [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=_default(each), annotation=hints[each.name])
        for each in fields(kind)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            options = kind(**{each.name: given.pop(each.name) for each in own})
            command(**given, options=options)

        taken: list[Parameter] = []
        for each in signature(command).parameters.values():
            taken += own if each.name == "options" else [each.replace(kind=Parameter.KEYWORD_ONLY)]
        run.__dict__["__signature__"] = Signature(taken)
        run.__annotations__ = {each.name: each.annotation for each in taken}
        return run

    return decorate


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
