import pytest

from dojang.doctor import NEEDED, OPTIONAL, Finding, examine, findings


@pytest.fixture(scope="module")
def found() -> dict[str, Finding]:
    return {finding.what: finding for finding in findings()}


def test_everything_worth_knowing_is_looked_at(found: dict[str, Finding]) -> None:
    assert {"python", "cores", "memory", "disk here", "gpu", "g++", *NEEDED, *OPTIONAL} == set(found)
    assert all(finding.found for finding in found.values())


@pytest.mark.parametrize("name", ["python", *NEEDED])
def test_what_these_tests_run_on_is_good(found: dict[str, Finding], name: str) -> None:
    assert found[name].good is True
    assert found[name].found[0].isdigit()


@pytest.mark.parametrize("name", OPTIONAL)
def test_what_is_optional_is_never_a_fault(found: dict[str, Finding], name: str) -> None:
    assert found[name].good is not False
    assert found[name].meaning == f"optional, for {OPTIONAL[name]}; this version does not use it yet"


def test_what_is_missing_comes_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dojang.doctor._installed", lambda name: None)
    monkeypatch.setenv("PATH", "")
    missing = {finding.what: finding for finding in findings()}
    assert missing["torch"] == Finding(False, "torch", "not installed", "pip install dojang")
    assert missing["gpu"] == Finding(None, "gpu", "unknown", "torch is not installed")
    assert missing["g++"] == Finding(
        None, "g++", "not found", "for judging C++ programs; this version does not use it yet"
    )


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    examine()
    printed = capsys.readouterr().out
    for what in ("python", "memory", "transformers", "what it means"):
        assert what in printed
