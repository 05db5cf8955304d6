import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

import dojang
from dojang.judge.checkers import PIECE, compare, digest_decides, normalize, parse_checker_score
from dojang.programs import Checker, CheckerName

COMPLETE: tuple[CheckerName, ...] = ("tokens", "exact", "caseless", "unordered")
BUILT_IN: tuple[CheckerName, ...] = (*COMPLETE, "floats", "contest")


def check(name: CheckerName, expected: bytes, actual: bytes, tolerance: float = 1e-6) -> str | None:
    """The verdict, after checking that it agrees with the normal forms."""
    checker = Checker(name, tolerance)
    found = compare(checker, expected, actual)
    same = normalize(checker, expected) == normalize(checker, actual)
    if digest_decides(checker, expected):
        assert same == (found is None)
    elif same:
        assert found is None
    return found


@pytest.mark.parametrize(
    ("name", "expected", "actual"),
    [
        ("tokens", b"1 2\n3\n", b"1 2 3"),
        ("tokens", b"1 2", b"\r\n\t 1\x0b2\x0c\n\n"),
        ("tokens", b"", b" \n"),
        ("tokens", b"a\0b\xff", b"a\0b\xff\n"),
        ("exact", b"a b\n", b"a b"),
        ("exact", b"a b", b"a b\r\n"),
        ("exact", b"", b"\n"),
        ("exact", b"a\r\nb\r\n", b"a\r\nb"),
        ("caseless", b"YES no", b"yes\nNO\n"),
        ("caseless", "Straße ÄΣ".encode(), "STRASSE äς".encode()),
        ("caseless", b"A\xff\xc3", b"a\xff\xc3"),
        ("unordered", b"1 2\n3 4\n", b"3  4\r\n\n1 2"),
        ("unordered", b"a\na\nb", b"a\nb\na\n"),
        ("unordered", b"", b"\n \n\r\n"),
        ("floats", b"5", b"5.0"),
        ("floats", b"5.0", b"5"),
        ("floats", b"0.5", b".5"),
        ("floats", b"5.", b"5"),
        ("floats", b"0.333333", b"0.333334"),
        ("floats", b"1e-9", b"0"),
        ("floats", b"-0.0", b"0"),
        ("floats", b"1000000.0", b"1000001.0"),
        ("floats", b"1e10", b"10000000000"),
        ("floats", b"x 1.5 y", b"x\n1.50000000001\ny"),
        ("floats", b"nan inf 1e999 0x10", b"nan inf 1e999 0x10\n"),
        ("contest", b"0.5", b"0.5000000000"),
        ("contest", b"0.5000000000", b".5"),
        ("contest", b"5.0", b"5"),
        ("contest", b"5.", b"5.0000001"),
        ("contest", b"0.333333", b"0.333334"),
        ("contest", b"1000000.0", b"1000001"),
        ("contest", b"-0.0", b"0"),
        ("contest", b"0.000", b"-0.0"),
        ("contest", b"1e-7", b"0"),
        ("contest", b"1E10", b"10000000000"),
        ("contest", b"1e+16", b"1.0000000000000001e16"),
        ("contest", b"YES", b"Yes"),
        ("contest", b"No\nYES\n3 no\n", b"NO yes\n3 nO   \n\n"),
        ("contest", b"No solution", b"NO solution"),
        ("contest", b"1 2\n", b"1 2 \n \n"),
        ("contest", b"nan -inf 1e999 0x1.8p3", b"nan -inf 1e999 0x1.8p3"),
        ("contest", b"12345678901234567890123.5", b"12345678901234567890123"),
    ],
)
def test_accepted(name: CheckerName, expected: bytes, actual: bytes) -> None:
    assert check(name, expected, actual) is None


@pytest.mark.parametrize(
    ("name", "expected", "actual", "said"),
    [
        ("tokens", b"1 2 42", b"1 2 41", "token 3 is '41', expected '42'"),
        ("tokens", b"1 2 3", b"1 2", "2 tokens where 3 are expected"),
        ("tokens", b"1", b"1 2 3", "3 tokens where 1 is expected"),
        ("tokens", b"1 2", b"", "0 tokens where 2 are expected"),
        ("tokens", b"1 2", b"1", "1 token where 2 are expected"),
        ("tokens", b"12", b"1 2", "token 1 is '1', expected '12'"),
        ("tokens", b"5", b"5.0", "token 1 is '5.0', expected '5'"),
        ("tokens", b"YES", b"yes", "token 1 is 'yes', expected 'YES'"),
        ("tokens", b"a", b"a\0", "token 1 is 'a\\x00', expected 'a'"),
        ("tokens", b"a", b"\xff\xfe", "token 1 is '\ufffd\ufffd', expected 'a'"),
        ("tokens", b"a b", "a\N{NO-BREAK SPACE}b".encode(), "token 1 is 'a\\xa0b', expected 'a'"),
        ("exact", b"a b\n", b"a  b\n", "line 1 is 'a  b', expected 'a b'"),
        ("exact", b"a\nb\nc", b"a\nx\nc", "line 2 is 'x', expected 'b'"),
        ("exact", b"a\nb", b"a\r\nb", "line 1 is 'a\\r', expected 'a'"),
        ("exact", b"a\n", b"a\n\n", "the output goes on in line 1, 1 byte too far"),
        ("exact", b"a\nb\n", b"a\n", "the output ends in line 1, 2 bytes early"),
        ("exact", b"a", b"a\r", "the output goes on in line 1, 1 byte too far"),
        ("caseless", b"YES", b"no", "token 1 is 'no', expected 'YES'"),
        ("caseless", b"YES NO", b"yes", "1 token where 2 are expected"),
        ("unordered", b"1 2\n3 4", b"1 2 3 4", "line '1 2 3 4' is not expected"),
        ("unordered", b"1\n2", b"2\n2", "line '2' comes too often"),
        ("unordered", b"1\n2\n2", b"2\n1", "line '2' is missing"),
        ("unordered", b"a b", b"b a", "line 'b a' is not expected"),
        ("floats", b"9007199254740993", b"9007199254740992", "token 1 is '9007199254740992'"),
        ("floats", b"1000000000", b"1000000001", "token 1"),
        ("floats", b"5", b"+5", "token 1"),
        ("floats", b"5", b"05", "token 1"),
        ("floats", b"0.5", b"0.50001", "token 1 is '0.50001', expected '0.5'"),
        ("contest", b"1", b"1.0", "token 1 is '1.0', expected '1'"),
        ("contest", b"1", b"1.0000000001", "token 1"),
        ("contest", b"1000000000", b"1e9", "token 1"),
        ("contest", b"0", b"-0", "token 1"),
        ("contest", b"0.5", b"0.50001", "token 1 is '0.50001', expected '0.5'"),
        ("contest", b"0.5", b"-0.5", "token 1"),
        ("contest", b"0.5", b"0.5 0.5", "2 tokens where 1 is expected"),
        ("contest", b"0.5", b"nan", "token 1"),
        ("contest", b"0.5", b"0.5f", "token 1"),
        ("contest", b"0.5", b"0,5", "token 1"),
        ("contest", b"1e300", b"1e999", "token 1"),
        ("contest", b"1e999", b"1e998", "token 1"),
        ("contest", b"1e999", b"inf", "token 1"),
        ("contest", b"nan", b"NaN", "token 1"),
        ("contest", b"1000.0", b"1_000", "token 1"),
        ("contest", b"16.0", b"0x10", "token 1"),
        ("contest", b"5.0", "\u0665".encode(), "token 1"),
        ("contest", b"YES", b"no", "token 1 is 'no', expected 'YES'"),
        ("contest", b"YES", b"Y", "token 1"),
        ("contest", b"NO", b"NOT", "token 1"),
        ("contest", b"None", b"NONE", "token 1"),
        ("contest", b"Alice", b"ALICE", "token 1"),
        ("contest", b"1.2.3", b"1.2.30", "token 1"),
        ("floats", b"1.5 2.5", b"1.5", "1 token where 2 are expected"),
        ("floats", b"1.5", b"nan", "token 1 is 'nan'"),
        ("floats", b"1.5", b"inf", "token 1"),
        ("floats", b"1e999", b"1e998", "token 1"),
        ("floats", b"1e308", b"-1e308", "token 1"),
        ("floats", b"1000.0", b"1_000", "token 1"),
        ("floats", b"16.0", b"0x10", "token 1"),
        ("floats", b"1.5", b"1.5f", "token 1"),
        ("floats", b"1.5", b"1,5", "token 1"),
        ("floats", b"1.0", "\N{ARABIC-INDIC DIGIT ONE}".encode(), "token 1"),
        ("floats", b"1.5", b".", "token 1"),
        ("floats", b"0.0", b"e0", "token 1"),
        ("floats", b"1.5", b"1.5e", "token 1"),
        ("floats", b"yes", b"YES", "token 1"),
    ],
)
def test_wrong_outputs_are_rejected_with_a_reason(name: CheckerName, expected: bytes, actual: bytes, said: str) -> None:
    found = check(name, expected, actual)
    assert found is not None
    assert said in found


def test_tolerance_is_absolute_or_relative() -> None:
    assert check("floats", b"0.001", b"0.002", tolerance=1e-3) is None
    assert check("floats", b"1000.0", b"1000.9", tolerance=1e-3) is None
    assert check("floats", b"1000.0", b"1001.1", tolerance=1e-3)
    assert check("floats", b"1.0", b"1.000", tolerance=0) is None
    assert check("floats", b"1.0", b"1.0000000000000002", tolerance=0)


def test_difference_equal_to_tolerance_is_accepted() -> None:
    random = Random(5)
    for _ in range(2000):
        digits = random.randrange(3, 10)
        wanted = random.randrange(-(10**digits), 10**digits)
        shown = f"{wanted / 10**digits:.{digits}f}", f"{(wanted + 1) / 10**digits:.{digits}f}"
        assert check("floats", shown[0].encode(), shown[1].encode(), tolerance=10.0**-digits) is None, shown


@pytest.mark.parametrize("name", BUILT_IN)
def test_message_quotes_the_first_difference_of_long_words(name: CheckerName) -> None:
    long = b"x" * 100_000
    found = check(name, long + b"1" + long, long + b"2" + long)
    assert found is not None
    assert len(found) < 250
    if name != "unordered":
        assert "xxx2xxx" in found
        assert "xxx1xxx" in found
    assert found.isprintable()


@pytest.mark.parametrize("name", BUILT_IN)
def test_random_outputs(name: CheckerName) -> None:
    random = Random(1)
    words = [b"1", b"1.0", b"2", b"a", b"A", b"\xff", "ß".encode(), b"SS", b"\0", b"1e5", b"-3", b".", b"\x85"]
    blanks = [b" ", b"\n", b"\r\n", b"\t", b"  ", b"\n\n", b" \n", b"\x0b", b""]

    def output() -> bytes:
        size = random.randrange(5)
        return b"".join(random.choice(words) + random.choice(blanks) for _ in range(size)) + random.choice(blanks)

    accepted = 0
    for _ in range(10_000):
        expected, actual = output(), output()
        found = check(name, expected, actual)
        assert check(name, actual, actual) is None
        if name != "contest":  # an expected integer is exact, an expected decimal accepts integers
            assert (check(name, actual, expected) is None) == (found is None)
        accepted += found is None
    assert 50 < accepted < 5_000  # both answers are well tried


@pytest.mark.parametrize("name", BUILT_IN)
def test_random_bytes(name: CheckerName) -> None:
    random = Random(2)
    for _ in range(3000):
        expected = random.randbytes(random.randrange(30))
        actual = bytearray(expected)
        if actual and random.random() < 0.7:
            actual[random.randrange(len(actual))] = random.choice(b" \n\r\0aA1.\xc3\x9f")
        check(name, expected, bytes(actual))


@pytest.mark.parametrize("name", ["tokens", "caseless", "floats", "contest"])
def test_pieces_do_not_change_the_verdict(name: CheckerName) -> None:
    random = Random(3)
    for _ in range(10):
        data = b"".join(
            random.choice([b"ab", "ä".encode(), b"c" * 50]) + b" " * random.choice([1] * 50 + [500, PIECE])
            for _ in range(1250)
        )
        padded = b" " * random.randrange(PIECE) + data.replace(b"c ", b"c\n")
        assert check(name, data, padded) is None
        assert normalize(Checker("tokens"), padded) == b" ".join(data.split())
        assert check(name, data, padded + b"d") == "1251 tokens where 1250 are expected"
        assert check(name, data, padded.replace(b"c" * 50, b"d", 1))


def test_unordered_lines_longer_than_a_piece() -> None:
    long = b"word " * PIECE
    assert check("unordered", long + b"\nb\n" + long, b"b\n\n" + long + b"\n" + long + b"\n") is None
    assert check("unordered", long + b"\nb\n" + long, b"b\n" + long)


HOSTILE = {
    "one word": b"x" * 2_000_000,
    "digits": b"9" * 2_000_000,
    "decimals": b"0." + b"3" * 2_000_000,
    "exponent": b"1e" + b"9" * 2_000_000,
    "almost a number": b"1" * 2_000_000 + b"x",
    "zeros": b"\0" * 2_000_000,
    "blanks": b" " * 2_000_000,
    "tiny words": b"1 " * 1_000_000,
    "short lines": b"12\n" * 666_666,
    "invalid": b"\xff\xc3" * 1_000_000,
}


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_two_megabytes_take_seconds(name: CheckerName, data: bytes) -> None:
    checker = Checker(name)
    started = time.process_time()
    compare(checker, data, data + b" 1")
    compare(checker, b"1.5", data)
    normalize(checker, data)
    assert time.process_time() - started < 4  # far more than it takes, far less than quadratic time would


@pytest.mark.parametrize("name", ["floats", "contest"])
def test_many_floats_take_linear_time(name: CheckerName) -> None:
    started = time.process_time()
    assert check(name, b"1.5 " * 250_000, b"1.50 " * 250_000) is None
    assert time.process_time() - started < 4


@pytest.mark.parametrize("name", ["floats", "contest"])
def test_a_number_of_millions_of_digits_takes_linear_time(name: CheckerName) -> None:
    long = b"0." + b"1" * 8_000_000
    started = time.process_time()
    assert compare(Checker(name), b"0.5", b"1" * 8_000_000 + b".0") is not None
    assert compare(Checker(name), long, long + b"2") is not None
    assert compare(Checker(name), long, long + b"\n") is None
    assert time.process_time() - started < 3


def test_contest_accepts_whatever_tokens_accepts_and_less_than_caseless_floats() -> None:
    """Contest lies between tokens and the two lenient checkers together."""
    random = Random(8)
    words = [b"1", b"1.0", b"1.0000001", b"-1", b"yes", b"YES", b"no", b"None", b"a", b"A", b"1e0", b"+1", b"01"]
    for _ in range(5_000):
        expected, actual = (b" ".join(random.choices(words, k=random.randrange(1, 3))) for _ in range(2))
        found = check("contest", expected, actual) is None
        assert found or check("tokens", expected, actual) is not None
        if found:
            lowered = expected.lower(), actual.lower()
            assert check("floats", *lowered) is None


def test_digest_decides() -> None:
    assert all(digest_decides(Checker(name), b"1.5") for name in COMPLETE)
    assert not digest_decides(Checker("floats"), b"1")
    assert not digest_decides(Checker("program", language="python3", source="..."), b"1")
    assert digest_decides(Checker("contest"), b"1 YES abc 1.2.3 e5 1_0.5x ... v1.0\n")
    for decimal in (b"1.5", b"a\n-.5", b"7 5.\n", b"1e5", b"+2E-3 x"):
        assert not digest_decides(Checker("contest"), decimal), decimal


def test_compare_rejects_checker_programs() -> None:
    checker = Checker("program", language="python3", source="...")
    assert normalize(checker, b" a\n") == b" a\n"
    with pytest.raises(ValueError, match="run it instead of comparing"):
        compare(checker, b"1", b"1")


@pytest.mark.parametrize(
    ("exit_code", "stdout", "verdict"),
    [
        (0, b"", True),
        (0, b"ok\n", True),
        (0, b"1\n", True),
        (0, b"0.5", True),
        (0, b"0 points", True),
        (0, b"nan", True),
        (0, b"\xff\0", True),
        (0, b"0\n", False),
        (0, b" 0.000 \n", False),
        (0, b"-0", False),
        (1, b"1", False),
        (2, b"", False),
        (3, b"1", None),
        (127, b"", None),
        (-11, b"1", None),
    ],
)
def test_parse_checker_score(exit_code: int, stdout: bytes, verdict: bool | None) -> None:
    assert parse_checker_score(exit_code, stdout) is verdict


def test_bare_interpreter_can_import_checkers() -> None:
    source = Path(dojang.__file__).parents[1]
    code = (
        f"import sys; sys.path.insert(0, {str(source)!r}); import dojang.judge.checkers; "
        "print({'pydantic', 'numpy', 'yaml'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
