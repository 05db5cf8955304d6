import re
import time
from collections.abc import Callable
from fractions import Fraction

import pytest

from dojang.tasks.answers import answer_line, follows_format, is_correct, read_number

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18),
        ("123456789", 123_456_789),
        ("0", 0),
        ("007", 7),
        ("3.0", 3),
        (".5", "1/2"),
        ("18.", 18),
        ("1,080", 1080),
        ("109,200,000", 109_200_000),
        ("1,234.50", "1234.5"),
        ("-3", -3),
        ("+3", 3),
        (f"{MINUS}3", -3),
        (f"{DASH}3", -3),
        ("-$3", -3),
        ("$-3", -3),
        ("$1,000", 1000),
        ("€20", 20),
        ("$18$", 18),
        ("50%", 50),
        ("1/2", "1/2"),
        ("-1/2", "-1/2"),
        ("1e3", 1000),
        ("2.5E-1", "1/4"),
        ("(18)", 18),
        ("**18**", 18),
        (r"\boxed{18}", 18),
        ("18g", 18),
        ("18km/h", 18),
        ("So, the answer is 18", 18),
        ("day-3", 3),
        ("Answer - 18", 18),
        ("x=-4", -4),
        ("18 thousand", 18),
    ],
)
def test_the_number_in_a_line(text: str, value: int | str) -> None:
    assert read_number(text) == Fraction(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "nan",
        "inf",
        "-infinity",
        "eighteen",
        "-",
        "$",
        ",",
        ".",
        "1 8",
        "18 or 19",
        "17, 18, 19",
        "17,18",
        "18-19",
        "18 18",
        "2 + 2",
        "9 * 2 = 18",
        "1 1/2",
        "1 000",
        "1_000",
        "1,00,000",
        "1,2345",
        "1.234,56",
        "1.2.3",
        "1/2/3",
        "3/0",
        "10:30",
        "1e999",
        "1e0000001",
        "0x12",
        "2½",
        "½",
        "2²",
        "١٨",
        "9" * 41,
        "1/" + "9" * 40,
        "0." + "0" * 100_000,
    ],
)
def test_no_number_or_several_is_none(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    "number",
    [
        "18",
        "-3",
        f"{MINUS}3",
        "+3",
        "$18",
        "-$18",
        "1,080",
        "1,234.50",
        "0.75",
        "50%",
        "18.",
        "3.50.",
        "18  ",
    ],
)
@pytest.mark.parametrize("before", ["", "Two steps.\n", "One.\r\nTwo.\r\n", "\n\n  ", "#### Sum\n"])
@pytest.mark.parametrize("after", ["", "\n", "\r\n", "\nDone.", "\n\nQuestion: and 1?"])
def test_well_formed_answer_lines_are_recognized(before: str, number: str, after: str) -> None:
    assert follows_format(f"{before}#### The final answer is {number}{after}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "18",
        "#### 18",
        "####The final answer is 18",
        "### The final answer is 18",
        "##### The final answer is 18",
        "#### the final answer is 18",
        "#### The final answer is",
        "#### The final answer is N",
        "#### The final answer is: 18",
        "#### The final answer is 18 apples",
        "#### The final answer is 18 or 19",
        "#### The final answer is 1 8",
        "#### The final answer is 17,18",
        "#### The final answer is 1,2345",
        "#### The final answer is 18..",
        "#### The final answer is nan",
        "#### The final answer is 1/2",
        "#### The final answer is\n18",
        "So: #### The final answer is 18",
        "The final answer is 18",
        "#### The final answer is " + "9" * 41,
        "Hm.\nQuestion: What is 1 + 1?\n2\n#### The final answer is 2",
    ],
)
def test_malformed_answer_lines_are_rejected(text: str) -> None:
    assert not follows_format(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        ("18", None),
        ("### 18", None),
        ("the line '#### 18' comes last", None),
        ("####", ""),
        ("#### ", ""),
        ("####18", "18"),
        ("  \t#### 18  ", "18"),
        ("a\r\n#### 18\r\nb", "18"),
        ("#### 17\n#### 18", "17"),
        ("####\n18", ""),
        ("Question: more\n#### 18", None),
    ],
)
def test_the_answer_line(text: str, line: str | None) -> None:
    assert answer_line(text) == line


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("#### The final answer is 18", "18"),
        ("#### So, the answer is 18", "18"),
        ("#### $18", "18"),
        ("#### 18", "18"),
        ("9 * 2 = 18\n#### 18.0 dollars\n", "18"),
        ("#### 1080", "1,080"),
        ("#### 1,080", "1080"),
        ("#### 2,520,000", "2,520,000"),
        ("#### -47", "-47"),
        (f"#### The final answer is {MINUS}47", "-47"),
        ("#### 0.333", "1/3"),
        ("#### 18.001", "18"),
        ("#### 17.999", "18"),
        ("#### 0.001001", "0.001"),
        ("#### 0.05005", "5/100"),
        ("#### -0.0", "0"),
        ("#### 1.001", "1"),
        ("#### 18", 18),
        ("#### 18\n#### 19", "18"),
        ("#### 18\n\nQuestion: What is 1 + 1?\n#### 2", "18"),
        ("#### 1000000000000000000000001", "1000000000000000000000001"),
    ],
)
def test_equal_answers_are_correct(text: str, reference: object) -> None:
    assert is_correct(text, reference)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("18", "18"),
        ("The final answer is 18", "18"),
        ("#### 19", "18"),
        ("#### -18", "18"),
        ("#### 3", "-3"),
        ("#### 18.0011", "18"),
        ("#### 0", "0.001"),
        ("#### 0.002", "0.001"),
        ("#### -0.001", "0.001"),
        ("#### 0.0001", "0"),
        ("#### 0.051", "0.05"),
        ("#### 1,081", "1,080"),
        ("#### 1 8", "18"),
        ("#### 18 or 19", "18"),
        ("#### 17, 18, 19", "18"),
        ("#### 17\n#### 18", "18"),
        ("#### 17\n#### The final answer is 18", "18"),
        ("#### I do not know\n#### 18", "18"),
        ("#### nan", "18"),
        ("#### inf", "18"),
        ("####\n18", "18"),
        ("Hm.\n\nQuestion: What is 9 * 2?\n#### 18", "18"),
        ("#### 1000000000000000000000002", "1000000000000000000000001"),
        ("#### " + "9" * 100_000, "9" * 30),
        ("#### 1e99", "1"),
    ],
)
def test_different_or_missing_answers_are_not_correct(text: str, reference: str) -> None:
    assert not is_correct(text, reference)


@pytest.mark.parametrize("reference", ["", "eighteen", "18 or 19", "nan", None, 1.0e400, "9" * 50])
def test_reference_without_number_is_refused(reference: object) -> None:
    with pytest.raises(ValueError, match="is not a number; no answer can be judged"):
        is_correct("#### 18", reference)


LONG = 100_000


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(unit * (LONG // len(unit)) + end, id=f"{unit!r}...{end!r}")
        for unit in (
            "#",
            " ",
            "\n",
            "\t",
            "9",
            "9,",
            ",999",
            "1.",
            "-",
            "$",
            "/9",
            "e9",
            "#### ",
            "\n#### 1",
            "\r",
        )
        for end in ("", "x", "\n#### x")
    ],
)
@pytest.mark.parametrize("start", ["", "#### ", "#### The final answer is 1"])
def test_hostile_text_is_parsed_in_linear_time(start: str, text: str) -> None:
    def read(text: str) -> None:
        follows_format(text)
        is_correct(text, "18")

    assert _seconds(read, start + text) < 0.5  # a few milliseconds; quadratic time would be minutes


def _seconds(work: Callable[[str], None], text: str) -> float:
    started = time.thread_time()
    work(text)
    return time.thread_time() - started


@pytest.mark.parametrize("text", ["##### 18", "###### 1,080", "##### -3", "Two steps.\n##### 18\n"])
def test_more_hashes_are_read_as_by_gsm8k_itself(text: str) -> None:
    official = re.search(r"#### (\-?[0-9\.\,]+)", text)  # of openai/grade-school-math; veRL's is the same
    assert official
    assert is_correct(text, official[1].replace(",", ""))
    assert not is_correct(text, "19")
    assert not follows_format(text)
