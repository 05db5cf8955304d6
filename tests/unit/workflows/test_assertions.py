"""Assertions as test cases. The replies are Qwen2.5-Coder-1.5B-Instruct's before any training, shortened."""

import pytest

from dojang.programs import CallTest
from dojang.workflows.assertions import find_assertions
from dojang.workflows.test_cases import InvalidCases, parse_cases

REVERSE = """\
Sure, here are the two tests that you can use in your test case:

```python
assert reverse_words(" ") == ' '
assert reverse_words("hello world") == 'world hello'
```
These two tests show the correct behavior of the function on empty string and with a single word.
"""
PRIME = """\
Yes, the answer is correct.

Here are the tests:

```python
assert prime_num(28) == False  # 28 is not a prime number
assert prime_num(-3) == False # Negative numbers are not prime numbers
assert prime_num(37) == True # 37 is a prime number
```
```python
assert prime_num(41) == True # 41 is a prime number
assert prime_num(1) == False  # 1 is not a prime number
```
"""
COPIED = """\
That function correctly reverses the words in a string.

```python
assert reverse_words("python program") == "program python"
assert reverse_words("oob ") == "oob "
```
"""
TASK = """\
Write a function to reverse words in a given string. It must pass this test, and others:

```python
assert reverse_words("python program")==("program python")
```

Answer with the whole function, in one ```python block."""
WITH_FUNCTION = """\
Yes, the function is right. Here's the Python block with two test cases:

```python
def remove_kth_element(lst, k):
    if k >= len(lst):
        return "Index out of range"
    else:
        return lst[:k] + lst[k+1:]

# Test cases

# Good case 1:
assert remove_kth_element([1,1,2,3,4,4,5,1],3)==[1, 1, 3, 4, 4, 5, 1]
# Reason: The k-th element, which is the third one, is 4.

# Bad case 1:
assert remove_kth_element([1,1,2,3,4,4,5,1],8)== "Index out of range"
```
"""
UNFINISHED = """\
Test case 1:

```python
assert get_ludic(12) == [1, 2, 3, 5, 7, 11]  # `n` should be 11 for this to pass
```
Reason: The test case uses the input \\( n = 12 \\), which should return the lucid numbers from 1 to 11.

```json
{"inputs": [12], "outputs": [1, 2, 3, 5, 7, 11]},
"""


def test_assertions_in_the_midst_of_a_reply_are_read() -> None:
    found = parse_cases(REVERSE, count=2, function="reverse_words", shown=TASK)
    assert [(case.given, case.wanted) for case in found] == [([" "], " "), (["hello world"], "world hello")]
    assert [case.test for case in found] == [
        CallTest.of_literals("reverse_words", [" "], " "),
        CallTest.of_literals("reverse_words", ["hello world"], "world hello"),
    ]


def test_the_last_block_with_assertions_counts() -> None:
    found = parse_cases(f"<think>{REVERSE}</think>{PRIME}\n```python\nprint(1)\n```", count=2, function="prime_num")
    assert [(case.given, case.wanted) for case in found] == [([41], True), ([1], False)]


def test_other_statements_of_the_block_are_ignored() -> None:
    first, second = parse_cases(WITH_FUNCTION, count=2, function="remove_kth_element")
    assert (first.given, second.wanted) == ([[1, 1, 2, 3, 4, 4, 5, 1], 3], "Index out of range")


def test_an_assertion_that_the_task_shows_is_refused() -> None:
    with pytest.raises(InvalidCases, match="one that the task shows"):
        parse_cases(COPIED, count=2, function="reverse_words", shown=TASK)
    assert len(parse_cases(COPIED, count=2, function="reverse_words")) == 2


def test_a_task_may_show_assertions_with_objects() -> None:
    shown = "<think>```python\nassert prime_num(Pair(5, 24), 4) == 3\n```"
    assert len(parse_cases(PRIME, count=2, function="prime_num", shown=shown)) == 2


def test_an_unfinished_block_after_assertions_is_ignored() -> None:
    (case,) = parse_cases(UNFINISHED, count=1, function="get_ludic")
    assert case.given == [12]


@pytest.mark.parametrize(
    ("line", "given", "wanted"),
    [
        ("assert f() == None", [], None),
        ("assert f((1, 2), {3}, {4: 'x'}) == -1.5, 'so'", [(1, 2), {3}, {4: "x"}], -1.5),
        ("assert f(set()) is True  # why", [set()], True),
        ("assert Solution().f([1]) == [[1]]", [[1]], [[1]]),
        (r"assert f('\ud800', '\d') == b'x'", ["\ud800", "\\d"], b"x"),
    ],
)
def test_literals_of_all_kinds(line: str, given: list[object], wanted: object) -> None:
    assert find_assertions(line, "f") == [(given, wanted)]
    (case,) = parse_cases(f"```\n{line}\n```", count=1, function="f")
    assert isinstance(case.test, CallTest)
    case.test.code.encode()  # can be sent to a judge


@pytest.mark.parametrize(
    "line",
    [
        "assert f(1)",
        "assert not f(1)",
        "assert g(1) == 1",
        "assert x.f(1) == 1",
        "assert Other().f(1) == 1",
        "assert 1 == f(1)",
        "assert f(1) != 1",
        "assert f(1) == 1 == 1",
        "assert f(1) == f(1)",
        "assert f(x) == 1",
        "assert f(n=1) == 1",
        "assert f(*[1]) == 1",
        "assert f(__import__('os').getpid()) == 1",
        "assert f([0] * 3) == 1",
        "assert f({[1]}) == 1",
        "assert f(...) == ...",
        "assert f(1e999) == 1",
        "assert f(" + "[" * 90 + "]" * 90 + ") == f",
    ],
)
def test_anything_but_a_call_compared_with_a_literal_is_refused(line: str) -> None:
    with pytest.raises(InvalidCases, match=r"does not have the form f\(\.\.\.\) == \.\.\., with literals"):
        parse_cases(f"```python\n{line}\n```", count=1, function="f")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("assert f(1) == 1", "no finished block of assertions"),
        ("```python\nassert f(1) == 1", "no finished block of assertions"),
        ("```json\nassert f(1) == 1\n```", "no finished block of assertions"),
        ("```python\nprint(f(1))\n```", "no finished block of assertions"),
        ("<think>```python\nassert f(1) == 1\n```", "still thinking"),
        ("```python\nassert f(1 == 1\n```", "not Python"),
        ("```python\nassert f('\x00') == 1\n```", "not Python"),
        ("```python\nassert f(" + "(" * 100_000 + "\n```", "not Python"),
        ("```python\ndef test():\n    assert f(1) == 1\n```", "0 cases where 2 were asked for"),
        ("```python\nassert f(1) == 1\n```", "1 cases where 2 were asked for"),
        ("```python\n" + "assert f(1) == 1\n" * 2 + "```", "there twice"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidCases, match=why):
        parse_cases(text, count=2, function="f")
