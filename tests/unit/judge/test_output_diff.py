import pytest

from dojang.judge.output_diff import difference, escaped, truncated
from dojang.programs import Checker, CheckerName


def shown(expected: str, actual: str, name: CheckerName = "tokens", width: int = 40) -> list[str]:
    return [line.text for line in difference(Checker(name), expected, actual, width)]


def test_first_difference_is_marked() -> None:
    assert shown("a\nb\nc d\n", "a\nb\nc e\n") == ["  a", "  b", "- c d", "+ c e", "    ^"]


def test_equal_lines_are_omitted() -> None:
    expected = "\n".join(map(str, range(1000)))
    assert shown(expected, expected.replace("\n500\n", "\nx\n")) == [
        "... 498 lines as expected",
        "  498",
        "  499",
        "- 500",
        "+ x",
        "  ^",
        "... 499 lines as expected",
    ]


def test_equal_lines_between_differences_are_omitted() -> None:
    expected = [str(number) for number in range(30)]
    actual = [*expected[:5], "x", *expected[6:20], *expected[21:]]
    assert shown("\n".join(expected), "\n".join(actual)) == [
        "... 3 lines as expected",
        *("  3", "  4", "- 5", "+ x", "  ^", "  6", "  7"),
        "... 10 lines as expected",
        *("  18", "  19", "- 20"),
        "... 9 lines as expected",
    ]


@pytest.mark.parametrize(
    ("name", "expected", "actual", "lines"),
    [
        ("tokens", "a b\nc", "a  b \nd", ["  a b", "- c", "+ d", "  ^"]),
        ("exact", "a b\nc", "a b \nc", ["- a b", "+ a b\u00b7", "     ^", "... 1 line as expected"]),
        ("caseless", "YES\n1", "yes\n2", ["  YES", "- 1", "+ 2", "  ^"]),
        ("floats", "0.5\n1.5", "0.5000001\n1.6", ["  0.5", "- 1.5", "+ 1.6", "    ^"]),
        ("unordered", "c\nb\na", "a\nd\nc", ["  a", "- b", "  c", "+ d"]),
    ],
)
def test_ignored_differences_are_not_shown(name: CheckerName, expected: str, actual: str, lines: list[str]) -> None:
    assert shown(expected, actual, name) == lines


def test_line_breaks_are_aligned_with_the_expected_text() -> None:
    assert shown("1 2 3\n4 5 6\n", "1\n2\n3\n4\n7\n6\n")[1:] == ["  1 2 3", "- 4 5 6", "+ 4 7 6", "    ^"]
    assert shown("1\n2\n3\n", "1 2 4 5\n")[1:] == ["  1", "  2", "- 3", "+ 4", "  ^", "+ 5"]


def test_long_lines_are_cut_around_the_difference() -> None:
    lines = shown("x" * 1000 + "a" + "y" * 1000, "x" * 1000 + "b" + "y" * 500)
    assert lines[0] == f"- ...{'x' * 20}a{'y' * 19}... (2001 characters)"
    assert lines[1] == f"+ ...{'x' * 20}b{'y' * 19}... (1501 characters)"
    assert lines[2].index("^") == lines[1].index("b")


def test_wide_characters_take_two_columns() -> None:
    assert shown("\u65e5\u672ca", "\u65e5\u672cb")[-1] == "      ^"


def test_one_text_may_be_empty() -> None:
    assert shown("1\n2\n", "") == ["- 1", "- 2"]
    assert shown("", "1\n") == ["+ 1"]


def test_large_difference_is_truncated() -> None:
    lines = shown("a\n" * 100_000, "b\n" * 200_000)
    assert len(lines) < 30
    assert lines[-1] == "... and so on: 100,000 lines expected, 200,000 printed"


def test_checker_program_may_reject_equal_text() -> None:
    checker = Checker("program", language="python3", source="x")
    assert [line.text for line in difference(checker, "1", "1", 40)] == ["(no line differs)"]


def test_control_characters_are_escaped() -> None:
    assert escaped("a\tb\x1b[0m\u202e\r  ") == "a\\tb\\x1b[0m\\u202e\\r\u00b7\u00b7"
    assert escaped("\ud800") == "\\ud800"


def test_truncated_from_either_end() -> None:
    text = "\n".join("abcde")
    assert [line.text for line in truncated(text, 2, 10)] == ["a", "b", "... 3 more lines"]
    assert [line.text for line in truncated(text, 4, 10, end=True)] == ["... 1 earlier line", "b", "c", "d", "e"]
    assert [line.text for line in truncated("x" * 20, 2, 10)] == [f"{'x' * 10}... (20 characters)"]
