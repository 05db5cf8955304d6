"""HTML whose text is escaped by construction: a plain string is text, only `Html` is markup."""

from collections.abc import Iterable
from html import escape
from typing import Union

from dojang.core.safe_text import safe_text

__all__ = ["Content", "Html", "element"]

Content = Union[str, int, None, "Html", Iterable["Content"]]
_VOID = ("meta", "link", "br")


class Html(str):
    """Markup that is written as it is."""

    __slots__ = ()


def element(tag: str, *content: Content, **attributes: str | bool | float | None) -> Html:
    """Returns an element. Text is escaped and its control characters made visible; underscores of attributes become
    hyphens, and a trailing one is dropped (`class_`). Attributes that are None or False are left out."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(safe_text("" if value is True else str(value)))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{tag}{given}>" + ("" if tag in _VOID else f"{_markup(content)}</{tag}>"))


def _markup(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Html):
        return content
    if isinstance(content, str | int):
        return escape(safe_text(str(content)), quote=False)
    return "".join(map(_markup, content))
