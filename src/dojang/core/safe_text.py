"""Text of a model made safe to print: control characters become visible escapes, long texts are shortened. Text of
others made safe to store and to tokenize: lone surrogates are replaced.

A completion may hold terminal escape sequences, carriage returns or marks that reverse the direction of text. Printed
as they are, they could move the cursor, change the title of the window or make a wrong answer look right.
"""

import unicodedata

__all__ = ["one_line", "replace_surrogates", "safe_text", "shorten"]


def safe_text(text: str) -> str:
    """Escapes every character that is not printed as itself, such as ESC or a right-to-left mark: \\x1b, \\u202e. Keeps
    line breaks; a tab becomes four spaces."""
    text = text.replace("\t", "    ")
    return "\n".join(line if line.isprintable() else "".join(map(_visible, line)) for line in text.split("\n"))


def _visible(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shorten(text: str, characters: int, lines: int) -> str:
    """Cuts the middle out of a long text; its end, where the answer is, keeps two thirds of the room."""
    if len(text) > characters:
        head = characters // 3
        cut = len(text) - characters
        text = f"{text[:head]} [... {cut:,} characters ...] {text[len(text) - (characters - head) :]}"
    rows = text.split("\n")
    if len(rows) > lines:
        head = lines // 3
        cut = len(rows) - lines
        rows = [*rows[:head], f"[... {cut:,} lines ...]", *rows[len(rows) - (lines - head) :]]
    return "\n".join(rows)


def one_line(text: str, characters: int, *, end: bool = False) -> str:
    """Text on a single line, safe to print, cut to its beginning or, with `end`, to its end."""
    bounded = text[-4 * characters :] if end else text[: 4 * characters]  # a megabyte of text is not worth escaping
    line = safe_text(" ".join(bounded.split()))
    if len(line) <= characters and len(bounded) == len(text):
        return line
    return f"...{line[-characters:]}" if end else f"{line[:characters]}..."


def replace_surrogates(text: str) -> str:
    """Replaces lone surrogates by U+FFFD, and joins pairs: JSON can hold them, but neither UTF-8 nor a tokenizer."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return str(text)
