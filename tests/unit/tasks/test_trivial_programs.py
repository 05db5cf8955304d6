"""Programs that solve nothing."""

from dojang.programs import CallTest, IoTest
from dojang.tasks.trivial_programs import checks, trivial_programs


def names(*tests: IoTest | CallTest) -> list[str]:
    return [each.name for each in trivial_programs(tests)]


def test_trivial_programs_for_io_tests() -> None:
    tests = [IoTest("3 4", "YES\n"), IoTest("5 6", "NO\n"), IoTest("7 8", "NO\n")]
    programs = list(trivial_programs(tests))
    assert [each.name for each in programs] == [
        "prints nothing",
        "always prints 'NO'",
        "echoes its input",
        "prints the first word of its input",
        "prints the last word of its input",
    ]
    assert [each.output("3 4") if each.output else None for each in programs] == ["", "NO\n", "3 4", "3", "4"]


def test_unguessable_answer_is_no_constant() -> None:
    long = "1 2 3 4 5 6 7 8 9"
    assert "always" not in " ".join(names(IoTest("1", long)))
    assert "always" not in " ".join(names(IoTest("1", long), IoTest("1", long)))
    assert f"always prints '{long}'" in names(IoTest("1", long), IoTest("2", long))


def test_trivial_programs_for_call_tests() -> None:
    tests = [CallTest("assert candidate(1) == True", "f"), CallTest("assert candidate(2)", "f")]
    assert names(*tests) == ["returns None", "returns its first argument", "always returns True"]
    for program in trivial_programs(tests):
        space: dict[str, object] = {}
        exec(program.source, space)
        assert callable(space["f"])
        assert space["f"](7) in (None, 7, True)


def test_expected_values_are_found() -> None:
    both = "assert not candidate(1)\nassert candidate(2) is False"
    assert "always returns False" in names(CallTest(both, "f"))
    packed = "import json\nassert plain(candidate(*json.loads('[1]'))) == json.loads('[]')"
    assert "always returns []" in names(CallTest(packed, "f"))
    assert names(CallTest("f(1", "f")) == ["returns None", "returns its first argument"]
    assert names(CallTest("assert f(1) == 1")) == [], "nobody knows what to call it"


def test_checks_are_counted() -> None:
    assert checks(IoTest("", "")) == 1
    assert checks(CallTest("def check(f):\n    assert f(1)\n    assert f(2)\ncheck(candidate)", "f")) == 2
    assert checks(CallTest("check(candidate)", "f")) == checks(CallTest("not python", "f")) == 1
