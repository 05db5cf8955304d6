import shutil

import pytest

from dojang.commands.doctor import GIVES, OPTIONAL, Finding, examine, findings, required


@pytest.fixture(scope="module")
def found() -> dict[str, Finding]:
    return {finding.what: finding for finding in findings()}


def test_everything_worth_knowing_is_looked_at(found: dict[str, Finding]) -> None:
    machine = {"python", "cores", "memory", "disk here", "gpu", "g++", *GIVES, "judge"}
    assert {*machine, *required(), *OPTIONAL} == set(found)
    assert all(finding.found for finding in found.values())


@pytest.mark.parametrize("name", ["python", *required()])
def test_required_packages_are_found(found: dict[str, Finding], name: str) -> None:
    assert found[name].good is True
    assert found[name].found[0].isdigit()


@pytest.mark.parametrize("name", OPTIONAL)
def test_missing_optional_packages_are_no_fault(found: dict[str, Finding], name: str) -> None:
    assert found[name].good is not False
    assert found[name].meaning == f"optional, for {OPTIONAL[name]}"


def test_missing_packages_come_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dojang.commands.doctor._installed", lambda name: None)
    monkeypatch.setenv("PATH", "")
    missing = {finding.what: finding for finding in findings()}
    assert missing["torch"] == Finding(False, "torch", "not installed", "pip install dojang")
    assert missing["gpu"] == Finding(None, "gpu", "unknown", "torch is not installed")
    assert missing["g++"].good is False
    assert "apt install g++" in missing["g++"].meaning


def test_isolation_levels_are_named(found: dict[str, Finding]) -> None:
    for name, gives in GIVES.items():
        works = found[name].good
        assert (found[name].found, found[name].meaning) == ("works", gives) if works else found[name].meaning
    levels = [name for name in ("namespaces", "landlock", "seccomp") if found[name].good]
    assert found["judge"].found == (f"isolation {levels[0]}" if levels else "no isolation available")


def test_lacking_one_way_to_keep_programs_in_is_no_fault_lacking_all_is(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = {"namespaces": "refused", "landlock": "", "seccomp": "", "cgroups": "none to be made"}
    monkeypatch.setattr("dojang.judge.host_capabilities.probe", lambda: offers)
    found = {finding.what: finding for finding in findings()}
    assert found["namespaces"].good is None
    assert found["namespaces"].found == "refused"
    assert "sysctl kernel.unprivileged_userns_clone=1" in found["namespaces"].meaning
    assert found["judge"].found == "isolation landlock"
    offers |= {"landlock": "too old", "seccomp": "off"}
    found = {finding.what: finding for finding in findings()}
    assert found["judge"].good is False
    assert "landlock: too old; seccomp: off" in found["judge"].meaning


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_compiler_is_named_by_its_version(found: dict[str, Finding]) -> None:
    assert found["g++"].good is True
    assert found["g++"].found.startswith("g++")


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    examine()
    printed = capsys.readouterr().out
    for what in ("python", "memory", "transformers", "meaning"):
        assert what in printed
