"""The metric registry, and that the source writes no unregistered metric. See also tests/recipes."""

import ast
import re
from pathlib import Path

import pytest

import dojang
from dojang.track.panels import Metric
from dojang.track.registry import ROWS, describe, find, gauge_name, metrics
from dojang.types import Outcome

PACKAGE = Path(dojang.__file__).parent
WRITERS = ("loop", "trainer", "algos", "engine", "inference", "workflows", "weight_sync", "cluster", "core/run_dir.py")
LOOKS_LIKE_ONE = re.compile(r"(actor|critic|groups|judge|perf|response_length|staleness|timing_s|val|weights)/[\w/]*")


def names_in_source() -> set[str]:
    """Returns string literals of the writing packages that look like metric names; <> marks a filled-in part."""
    found = set()
    for package in WRITERS:
        for path in sorted((PACKAGE / package).rglob("*.py")) or [PACKAGE / package]:
            found |= {text_of(node) for node in ast.walk(ast.parse(path.read_text()))}
    found.remove("timing_s/<>")  # the prefix that a Clock adds
    return {name for name in found if LOOKS_LIKE_ONE.fullmatch(name.replace("<>", "x"))}


def text_of(node: ast.AST) -> str:
    match node:
        case ast.JoinedStr():
            return "".join(str(each.value) if isinstance(each, ast.Constant) else "<>" for each in node.values)
        case ast.Constant(value=str()):
            return str(node.value)
        case ast.Call(func=ast.Name(id="timer"), args=[ast.Constant(value=name)]):
            return f"timing_s/{name}"
    return ""


def is_prefix(name: str) -> bool:
    """Returns whether the name is a prefix of a metric or family, such as `critic/rewards` of critic/rewards/mean."""
    return any(metric.name.startswith(f"{name.rstrip('/')}/") for metric in metrics())


def test_every_metric_name_in_the_source_is_registered() -> None:
    names = names_in_source()
    assert {"actor/grad_norm", "weights/bytes", "actor/correction/<>", "timing_s/update"} <= names
    assert [name for name in sorted(names) if find(name.replace("<>", "x")) is None and not is_prefix(name)] == []


def test_metrics_are_unique_and_described() -> None:
    known = list(metrics())
    assert len({metric.name for metric in known}) == len(known)
    assert all(metric.meaning.endswith(".") and len(metric.meaning) > 10 for metric in known)
    assert all(len({metric.unit for metric in panel.metrics}) == 1 for row in ROWS for panel in row.panels)
    titles = [panel.title for row in ROWS for panel in row.panels]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("metric", [*metrics()], ids=lambda metric: metric.name)
def test_metric_is_found_by_its_name(metric: Metric) -> None:
    assert find(re.sub("<.*>", "some-thing/else", metric.name)) == metric


def test_families_and_roles_are_found() -> None:
    def name(of: str) -> str | None:
        found = find(of)
        return None if found is None else found.name

    assert name("val/test_score/openai/gsm8k") == "val/test_score/<source>"
    assert name("critic/rewards/mean") == "critic/rewards/mean"
    assert name("critic/rewards/mypackage.rewards:brevity/mean") == "critic/rewards/<part>/mean"
    assert all(name(f"judge/outcome/{outcome}") for outcome in Outcome)
    assert name("tester/actor/grad_norm") == "actor/grad_norm"
    assert name("tester/val/accuracy") is None, "roles share one evaluation"
    assert name("actor/nothing") is None
    assert name("val/test_score/") is None


def test_help_texts_describe_metrics() -> None:
    assert describe("timing_s/eval") == "Duration of the evaluation. (s)"
    assert describe("tester/judge/errors") == "(tester) Samples that could not be judged. (samples)"
    assert describe("my/own") == "my/own of metrics.jsonl."


def test_gauge_names_are_valid_in_prometheus() -> None:
    assert gauge_name("val/test_score/open-ai gsm8k/") == "dojang_val_test_score_open_ai_gsm8k"
    assert all(re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", gauge_name(metric.name)) for metric in metrics())
