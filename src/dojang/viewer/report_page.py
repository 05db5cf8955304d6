"""The HTML of a report. It can be read without JavaScript; with it, charts have values under the pointer and zoom."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dojang.core.safe_text import shorten
from dojang.diagnosis.findings import Diagnosis, Finding
from dojang.viewer.html_text import Content, Html, element
from dojang.viewer.report_data import Evaluation, ReportChart, ReportSample
from dojang.viewer.svg_chart import draw_lines

__all__ = ["charts_section", "data_table", "diagnosis_section", "evaluations_table", "page", "samples_section"]

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("text.js", "dom.js", "scales.js", "chart.js", "report.js")
"""Modules in an order in which each finds what it imports; their names do not clash."""
STYLES = ("colors.css", "base.css", "chart.css", "report.css")
TEXT = (3000, 80)
"""Most characters and lines of a text of a sample."""
TESTS = 20


def page(title: str, facts: str, sections: Iterable[Content], charts: Sequence[ReportChart]) -> str:
    """Returns the whole document: nothing in it is loaded from elsewhere, and only its own script may run."""
    script, style = "\n".join(map(_script, SCRIPTS)), "\n".join((STATIC / name).read_text() for name in STYLES)
    policy = f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)}"
    data = [
        {
            "title": chart.title,
            "unit": chart.unit,
            "series": [{"name": each.name, "steps": each.steps, "values": each.values} for each in chart.lines],
        }
        for chart in charts
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title}: report"),
        element("style", Html(style)),
    )
    header = element("header", element("h1", title), element("p", facts, class_="note"))
    body = element(
        "body",
        element("main", header, sections),
        element("script", Html(_json(data)), type="application/json", id="data"),
        element("script", Html(script)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _script(name: str) -> str:
    """A module without its imports and exports: all are in one script."""
    text = re.sub(r"^import [^;]*;\n", "", (STATIC / name).read_text(), flags=re.MULTILINE)
    return re.sub(r"^export ", "", text, flags=re.MULTILINE)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: Any) -> str:
    """JSON in which no character can end a script element; `ensure_ascii` escapes U+2028 as well."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def diagnosis_section(found: Diagnosis) -> Html:
    """Verdict, facts and findings of `dojang explain`."""
    facts = element("ul", [element("li", each) for each in found.verdict.facts], class_="facts")
    findings = [_finding(each, place == 0) for place, each in enumerate(found.findings)]
    return _section("Verdict", element("p", found.verdict.headline, class_="verdict"), facts, findings)


def _finding(found: Finding, is_open: bool) -> Html:
    examples = [f"{each.id} [{each.remark}]: {each.text}" for each in found.examples]
    lists = (("evidence", found.evidence), ("change", found.advice), ("samples", examples))
    return element(
        "details",
        element("summary", element("span", str(found.severity), class_="kind"), found.title),
        [
            [element("h4", title), element("ul", [element("li", each) for each in items])]
            for title, items in lists
            if items
        ],
        class_=f"finding {found.severity}",
        open=is_open,
    )


def charts_section(charts: Sequence[ReportChart]) -> Html:
    """Charts, each with a drawing that needs no script."""
    figures = [
        element(
            "figure",
            element(
                "figcaption",
                element("b", chart.title),
                element("span", f"  {chart.unit}", class_="muted"),
                element("p", chart.meaning, class_="note") if chart.meaning else None,
            ),
            element("div", draw_lines(chart.lines, chart.title), _legend(chart), class_="host", data_chart=place),
            class_="card",
        )
        for place, chart in enumerate(charts)
    ]
    content: Content = figures or element("p", "No metrics were recorded.", class_="note")
    return element("section", element("h2", "Charts"), element("div", content, class_="charts"))


def _legend(chart: ReportChart) -> Html:
    lines = [
        element("li", element("svg", _sample_line(place), class_="swatch", width=22, height=10), " ", line.name)
        for place, line in enumerate(chart.lines)
    ]
    return element("ul", lines, class_="legend")


def _sample_line(place: int) -> Html:
    return element("line", class_=f"line series-{place % 8}", x1=0, x2=22, y1=5, y2=5)


def evaluations_table(found: Sequence[Evaluation]) -> Html:
    """Accuracy with its interval, at every step that was evaluated."""
    rows = [
        (
            each.name,
            f"{each.step:,}",
            "" if each.problems is None else f"{each.problems:,}",
            f"{each.accuracy:.1%}",
            "not recorded" if each.low is None or each.high is None else f"{each.low:.1%} to {each.high:.1%}",
        )
        for each in found
    ]
    return data_table("Evaluations", ("On", "Step", "Problems", "Accuracy", "95% interval"), rows, numbers=(1, 2, 3, 4))


def data_table(
    title: str,
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    note: str = "",
    empty: str = "None.",
    numbers: Sequence[int] = (),
) -> Html:
    """A section with a table; values that are no text are written as JSON."""

    def cells(tag: str, values: Sequence[Any]) -> list[Html]:
        kinds = ("num" if place in numbers else None for place in range(len(values)))
        return [element(tag, _cell(value), class_=kind) for value, kind in zip(values, kinds, strict=True)]

    table = element(
        "table",
        element("thead", element("tr", cells("th", names))),
        element("tbody", [element("tr", cells("td", row)) for row in rows]),
    )
    body: Content = element("div", table, class_="scroll-x") if rows else element("p", empty, class_="note")
    return _section(title, element("p", note, class_="note") if note else None, body)


def _cell(value: Any) -> str:
    return shorten(value if isinstance(value, str) else json.dumps(value, default=str), 400, 8)


def samples_section(found: Sequence[ReportSample]) -> Html:
    """Samples with question, response, verdict and the results of their tests."""
    content: Content = [_sample(each) for each in found] or element("p", "No samples were recorded.", class_="note")
    return element("section", element("h2", "Samples"), content)


def _sample(sample: ReportSample) -> Html:
    row = sample.row
    kind = {"accepted": "good", "judge_error": "odd"}.get(str(row["outcome"]), "bad")
    facts = [f"reward {_number(row['reward'])}", f"advantage {_number(row['advantage'])}"]
    facts += [f"{row['length']:,} tokens"] if row["length"] is not None else []
    facts += [f"{row['passed']} of {row['total']} tests"] if (row["total"] or 0) > 1 else []
    parts = [f"{name} {_number(value)}" for name, value in row["reward_parts"].items()]
    head = element(
        "p",
        element("b", sample.reason),
        f"  step {row['step']}, {row['problem']}, sample {row['index']}  ",
        element("span", str(row["outcome"]), class_=f"badge {kind}"),
        element("span", f"  {', '.join(facts + parts)}", class_="muted"),
    )
    texts = (("Question", row["question"]), ("Response", row["response"]), ("Verdict", row["detail"]))
    blocks = [
        [element("h3", name), element("pre", shorten(text, *TEXT), class_="text", dir="ltr")]
        for name, text in texts
        if text
    ]
    return element("article", head, blocks, _tests(row["tests"] or ()), class_="card sample")


def _tests(tests: Sequence[dict[str, Any]]) -> Html | None:
    if not tests:
        return None
    failed_first = sorted(tests, key=lambda each: each["outcome"] == "accepted")
    rows = [
        element(
            "tr",
            element("td", str(each["test"])),
            element("td", str(each["outcome"])),
            element("td", f"{each['cpu_s'] or 0:.3f} s", class_="num"),
            element("td", f"{each['memory_mb'] or 0:.1f} MB", class_="num"),
            element("td", shorten("\n".join(filter(None, (each["detail"], each["errors"]))), 300, 4)),
        )
        for each in failed_first[:TESTS]
    ]
    names = ("Test", "Outcome", "CPU", "Memory", "Detail")
    head = element("tr", [element("th", name, class_="num" if name in ("CPU", "Memory") else None) for name in names])
    left = element("p", f"{len(tests) - TESTS} further tests", class_="note") if len(tests) > TESTS else None
    return element("div", element("table", element("thead", head), element("tbody", rows)), left, class_="scroll-x")


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _section(title: str, *content: Content) -> Html:
    return element("section", element("h2", title), element("div", content, class_="card stack"))
