"""Every program of the corpus has a valid header, and every kind has enough programs."""

from collections import Counter
from pathlib import Path

import pytest

from corpus import ARCHES, FOLDERS, PROGRAMS, Entry, MalformedHeader, entries, load, paths
from dojang.programs import CallTest, IoTest, Isolation, Judgement, TestResult, fold
from dojang.types import Outcome

EVERY = [load(path) for path in paths()]


def judged(*results: TestResult, detail: str = "") -> Judgement:
    return Judgement(fold(results), results, total=len(results), isolation=Isolation.NONE, detail=detail)


def written(tmp_path: Path, text: str, name: str = "hostile/sample.cpp") -> Entry:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return load(path)


def test_every_file_is_a_program() -> None:
    files = {path for path in PROGRAMS.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert files == set(paths())


def test_names_are_unique_and_plain() -> None:
    assert [name for name, count in Counter(entry.name for entry in EVERY).items() if count > 1] == []
    assert [entry.name for entry in EVERY if not entry.path.stem.replace("_", "").isalnum()] == []
    assert [entry.name for entry in EVERY if "test" in entry.path.stem] == [], "pytest would take it for a test"


def test_sources_differ() -> None:
    assert len({entry.source for entry in EVERY}) == len(EVERY)


def test_there_are_enough() -> None:
    folders = Counter(entry.path.parent.name for entry in EVERY)
    languages = Counter(entry.language[:3] for entry in EVERY)
    assert all(folders[folder] >= 20 for folder in FOLDERS), folders
    assert all(languages[language] >= 60 for language in ("cpp", "pyt")), languages
    assert len(EVERY) >= 125


def test_every_outcome_is_expected_somewhere() -> None:
    seen = {expected.outcome for entry in EVERY for expected in entry.expect}
    assert seen == set(Outcome) - {Outcome.JUDGE_ERROR, Outcome.NO_ANSWER}


def test_honest_programs_are_accepted() -> None:
    honest = [entry for entry in EVERY if entry.path.parent.name == "honest"]
    assert [entry.name for entry in honest if [str(each) for each in entry.expect] != ["accepted"]] == []


def test_compile_attacks_are_not_accepted_lightly() -> None:
    compiled = [entry for entry in EVERY if entry.path.parent.name == "compile"]
    assert [entry.name for entry in compiled if [str(each) for each in entry.expect] == ["accepted"]] == []


@pytest.mark.parametrize("arch", ARCHES)
def test_most_programs_run_everywhere(arch: str) -> None:
    found = entries(arch)
    assert len(found) > 0.9 * len(EVERY)
    assert {entry.arch for entry in found} <= {None, arch}


def test_tests_are_of_the_right_kind() -> None:
    for entry in EVERY:
        kind = CallTest if entry.path.parent.name == "calls" else IoTest
        assert all(isinstance(test, kind) for test in entry.test_suite.tests), entry.name


def test_line_ends_and_marks_are_kept() -> None:
    sources = {entry.name: entry.source for entry in EVERY}
    assert "\r\n" in sources["honest/crlf_source"]
    assert sources["honest/bom_source"].startswith("\ufeff")
    assert sources["honest/bom_python"].startswith("\ufeff")


def test_a_full_header(tmp_path: Path) -> None:
    entry = written(
        tmp_path,
        "// tries: everything\n// expect: wrong | runtime_error(SIGSYS)\n// hides: root:\n// arch: x86_64\n"
        "// language: cpp20\n// limits: memory_mb=64 cpu_s=0.5\n// checker: floats\n"
        '// input: "1\\n"\n// output: "2\\n"\n// expand: DEEP = "ab" x 3\n\nint DEEP;\n',
    )
    assert (entry.name, entry.arch, entry.language) == ("hostile/sample", "x86_64", "cpp20")
    assert [str(each) for each in entry.expect] == ["wrong", "runtime_error(SIGSYS)"]
    assert entry.hides == ("root:",)
    assert (entry.test_suite.limits.memory_mb, entry.test_suite.limits.cpu_s) == (64, 0.5)
    assert entry.test_suite.checker.name == "floats"
    assert entry.test_suite.tests == (IoTest("1\n", "2\n"),)
    assert entry.source.endswith("\n\nint ababab;\n")


def test_calls_keep_indentation_and_begin_anew_with_each_function(tmp_path: Path) -> None:
    entry = written(
        tmp_path,
        "# tries: nothing\n# expect: accepted\n# function: f\n# code: for i in [1]:\n# code:     assert candidate(i)\n"
        "# function: g\n# code: assert candidate()\n",
        "calls/sample.py",
    )
    assert entry.test_suite.tests == (
        CallTest("for i in [1]:\n    assert candidate(i)\n", "f"),
        CallTest("assert candidate()\n", "g"),
    )


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("// expect: wrong", "lacks 'tries:'"),
        ("// tries: x", "lacks 'expect:'"),
        ("// tries: x\n// expect: fine", "unknown outcome 'fine'"),
        ("// tries: x\n// expect: judge_error", "unknown outcome 'judge_error'"),
        ("// tries: x\n// expect: wrong(SIGSYS)", "only a runtime_error has a signal"),
        ("// tries: x\n// expect: wrong, accepted", "cannot read the expectation"),
        ("// tries: x\n// expect: wrong\n// expect: wrong", "given twice"),
        ("// tries: x\n// expect: wrong\n// colour: red", "unknown key 'colour'"),
        ("// tries: x\n// expect: wrong\n// and so on", "not a 'key: value' line"),
        ("// tries: x\n// expect: wrong\n// limits: speed=9", "unknown limit 'speed'"),
        ("// tries: x\n// expect: wrong\n// limits: memory_mb=1", "limits.memory_mb=1 is out of range"),
        ("// tries: x\n// expect: wrong\n// arch: vax", "unknown arch 'vax'"),
        ("// tries: x\n// expect: wrong\n// language: python3", "unknown language 'python3'"),
        ("// tries: x\n// expect: wrong\n// checker: psychic", "unknown checker 'psychic'"),
        ('// tries: x\n// expect: wrong\n// input: "1"', "needs an 'output:'"),
        ("// tries: x\n// expect: wrong\n// input: 1\n// output: 1", "not a JSON string"),
        ("// tries: x\n// expect: wrong\n// code: assert True", "only those, need 'code:'"),
        ('// tries: x\n// expect: wrong\n// expand: A = "b" x 2', "never used"),
        ("// tries: x\n// expect: wrong\n// expand: b", "cannot read the expansion"),
    ],
)
def test_malformed_headers_are_named(tmp_path: Path, header: str, complaint: str) -> None:
    with pytest.raises(MalformedHeader, match=r"hostile/sample\.cpp: ") as raised:
        written(tmp_path, header + "\n\nint main() {}\n")
    assert complaint in str(raised.value)


def test_problems_are_described(tmp_path: Path) -> None:
    entry = written(
        tmp_path, "// tries: peek\n// expect: wrong | runtime_error(SIGSYS)\n// hides: root:\n\nint main() {}\n"
    )
    wrong = TestResult(0, Outcome.WRONG)
    assert entry.problem_with(judged(wrong)) is None
    assert entry.problem_with(judged(TestResult(0, Outcome.RUNTIME_ERROR, signal="SIGSYS"))) is None
    assert entry.problem_with(judged(TestResult(0, Outcome.ACCEPTED))) == (
        "hostile/sample (peek): expected wrong or runtime_error(SIGSYS), got accepted"
    )
    told = entry.problem_with(judged(TestResult(0, Outcome.RUNTIME_ERROR, signal="SIGSEGV", detail="crashed")))
    assert told is not None
    assert "SIGSEGV" in told
    assert "crashed" in told
    assert entry.problem_with(judged(wrong, detail="root:x:0")) == (
        "hostile/sample (peek): the judgement reveals 'root:'"
    )


def test_unknown_architectures_are_refused() -> None:
    with pytest.raises(ValueError, match="no programs for the architecture 'vax'"):
        entries("vax")
