"""What is known of figures, and that the source writes no others. See also tests/recipes."""

import ast
import re
from pathlib import Path

import pytest

import dojang
from dojang.track.registry import ROWS, Figure, about, figures, find, gauge_name
from dojang.types import Outcome

PACKAGE = Path(dojang.__file__).parent
WRITERS = ("loop", "trainer", "algos", "engine", "inference", "workflows", "weight_sync", "cluster", "core/run_dir.py")
LOOKS_LIKE_ONE = re.compile(r"(actor|critic|groups|judge|perf|response_length|timing_s|val|weights)/[\w/]*")


def names_in_source() -> set[str]:
    """Every text of the rooms that write figures which looks like the name of one; <> where a part is filled in."""
    found = set()
    for room in WRITERS:
        for path in sorted((PACKAGE / room).rglob("*.py")) or [PACKAGE / room]:
            found |= {text_of(node) for node in ast.walk(ast.parse(path.read_text()))}
    found.remove("timing_s/<>")  # what a Clock puts before the names it is called with
    return {name for name in found if LOOKS_LIKE_ONE.fullmatch(name.replace("<>", "x"))}


def text_of(node: ast.AST) -> str:
    match node:
        case ast.JoinedStr():
            return "".join(str(each.value) if isinstance(each, ast.Constant) else "<>" for each in node.values)
        case ast.Constant(value=str()):
            return str(node.value)
        case ast.Call(func=ast.Name(id="clock"), args=[ast.Constant(value=name)]):
            return f"timing_s/{name}"
    return ""


def begins_one(name: str) -> bool:
    """Whether it is what figures begin with: `critic/rewards` of critic/rewards/mean, or what a family begins with."""
    return any(figure.name.startswith(f"{name.rstrip('/')}/") for figure in figures())


def test_every_name_in_the_source_is_known() -> None:
    names = names_in_source()
    assert {"actor/grad_norm", "weights/bytes", "actor/correction/<>", "timing_s/learn"} <= names
    assert [name for name in sorted(names) if find(name.replace("<>", "x")) is None and not begins_one(name)] == []


def test_no_figure_is_there_twice_and_all_say_what_they_are() -> None:
    known = list(figures())
    assert len({figure.name for figure in known}) == len(known)
    assert all(figure.meaning.endswith(".") and len(figure.meaning) > 10 for figure in known)
    assert all(len({figure.unit for figure in panel.figures}) == 1 for row in ROWS for panel in row.panels)
    titles = [panel.title for row in ROWS for panel in row.panels]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("figure", [*figures()], ids=lambda figure: figure.name)
def test_a_figure_is_found_by_its_own_name(figure: Figure) -> None:
    assert find(re.sub("<.*>", "some-thing/else", figure.name)) == figure


def test_families_and_roles_are_found() -> None:
    def name(of: str) -> str | None:
        found = find(of)
        return None if found is None else found.name

    assert name("val/test_score/openai/gsm8k") == "val/test_score/<source>"
    assert name("critic/rewards/mean") == "critic/rewards/mean"
    assert name("critic/rewards/mypackage.rewards:brevity/mean") == "critic/rewards/<part>/mean"
    assert all(name(f"judge/outcome/{outcome}") for outcome in Outcome)
    assert name("tester/actor/grad_norm") == "actor/grad_norm"
    assert name("tester/val/accuracy") is None, "there is one evaluation"
    assert name("actor/nothing") is None
    assert name("val/test_score/") is None


def test_help_texts_say_what_a_figure_is() -> None:
    assert about("timing_s/eval") == "The evaluation. (s)"
    assert about("tester/judge/errors") == "Of the tester: Samples that could not be judged. (samples)"
    assert about("my/own") == "my/own of metrics.jsonl."


def test_names_are_what_prometheus_allows() -> None:
    assert gauge_name("val/test_score/open-ai gsm8k/") == "dojang_val_test_score_open_ai_gsm8k"
    assert all(re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", gauge_name(figure.name)) for figure in figures())
