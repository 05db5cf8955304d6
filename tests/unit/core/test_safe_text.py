"""Text of models is inert once it is printed."""

import sys
import time
import unicodedata

import pytest

from dojang.core.safe_text import one_line, safe_text, shorten


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("wrong\rright", "wrong\\x0dright"),
        ("a\bb\x00\x7f\x9b2J", "a\\x08b\\x00\\x7f\\x9b2J"),
        ("abc\u202etxt.exe\u2066", "abc\\u202etxt.exe\\u2066"),
        ("4\u200b2", "4\\u200b2"),
        ("a\u2028b", "a\\u2028b"),
        ("\ud800", "\\ud800"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("a\tb\nc", "a    b\nc"),
        ("[bold]x[/] :smile: é 漢字\u3000שלם 🙂", "[bold]x[/] :smile: é 漢字\u3000שלם 🙂"),
    ],
)
def test_characters_that_act_become_visible(text: str, shown: str) -> None:
    assert safe_text(text) == shown


def test_no_character_of_unicode_acts() -> None:
    every = "".join(chr(code) for code in range(sys.maxunicode + 1))
    shown = safe_text(every).replace("\n", "")
    assert {unicodedata.category(each) for each in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"} == set()
    assert "a\u0301漢" in safe_text("a\u0301漢")


def test_the_middle_of_a_long_text_is_cut() -> None:
    assert shorten("short\ntext", 20, 2) == "short\ntext"
    assert shorten("a" * 30 + "b" * 70, 30, 5) == "a" * 10 + " [... 70 characters ...] " + "b" * 20
    assert shorten("\n".join(map(str, range(9))), 1000, 3) == "0\n[... 6 lines ...]\n7\n8"


def test_one_line_keeps_the_beginning_or_the_end() -> None:
    assert one_line(" a\n b\t\x1b ", 20) == "a b \\x1b"
    assert one_line("x" * 50 + "y", 10) == "x" * 10 + "..."
    assert one_line("x" * 50 + "y", 10, end=True) == "..." + "x" * 9 + "y"
    assert one_line("", 10) == ""


def test_megabytes_are_quick() -> None:
    before = time.perf_counter()
    for text in ("x" * 10**7, "\x1b" * 10**7):
        assert len(safe_text(shorten(text, 1000, 10))) < 5000
        assert len(one_line(text, 100, end=True)) <= 103
    assert time.perf_counter() - before < 2
