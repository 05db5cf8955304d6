"""`dojang report` on real runs, on runs that lack files, and on hostile text."""

import json
import os
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dojang
from dojang.commands import app
from dojang.core.errors import RunDirError
from dojang.loop.statistics import interval
from dojang.viewer.report import write_report
from rollout_files import row, write

HOSTILE = "</script></pre><script>window.owned=1</script><img src=x onerror=alert(1)>\x1b[2J\u202e\u2028'\"&amp;"
MEGABYTES_5 = 5 * 2**20


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside: list[str] = []
        self.source = path.read_text()
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self._inside.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._inside[-1] if self._inside else ""
        if inside == "script":
            self.scripts[-1] += data
        elif inside != "style":
            self.text += data


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    few = {"eval": {"problems": 24, "every": 2}, "rollout": {"prompts_per_step": 2, "group_size": 4}}
    dojang.train("quickstart", steps=2, run_dir=run, **few)
    return run


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("steps: 3\n")
    return tmp_path


def test_report_of_a_run(quickstart: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(quickstart), "--output", str(tmp_path / "out.html")])
    assert result.exit_code == 0, result.output
    assert result.output == f"report: {tmp_path / 'out.html'}\n"
    page = Page(tmp_path / "out.html")
    assert len(page.source) < MEGABYTES_5
    for section in ("Verdict", "Charts", "Evaluations", "Samples", "Settings that differ", "Environment"):
        assert section in page.text
    charts = {chart["title"]: chart for chart in json.loads(page.scripts[0])}
    rows = [json.loads(line) for line in (quickstart / "metrics.jsonl").read_text().splitlines()]
    rewards = [each["critic/rewards/mean"] for each in rows if "critic/rewards/mean" in each]
    assert charts["Reward"]["series"][0] == {"name": "critic/rewards/mean", "steps": [1, 2], "values": rewards}
    first = next(each["val/accuracy"] for each in rows if each["step"] == 0)
    bounds = interval([1.0] * round(first * 24) + [0.0] * round((1 - first) * 24))
    assert f"held-out024{first:.1%}{bounds.low:.1%} to {bounds.high:.1%}" in page.text
    assert "rollout.group_size84" in page.text  # key, recipe, run
    assert page.text.count("of the first step") == 4
    assert page.text.count("of the last step") == 4


def test_report_needs_nothing_else(quickstart: Path) -> None:
    page = Page(write_report(quickstart))
    assert (quickstart / "report.html").is_file()
    assert not [tag for tag in page.tags if tag[0] in ("link", "img", "iframe") or {"src", "href"} & tag[1].keys()]
    assert "import " not in page.scripts[1]
    assert "export " not in page.scripts[1]
    policy = next(tag[1]["content"] or "" for tag in page.tags if tag[1].get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    drawn = [tag for tag in page.tags if tag[0] == "path" and str(tag[1]["class"]).startswith("line series-")]
    assert len(drawn) > 10  # charts without JavaScript


def test_hostile_text_is_inert(bare: Path) -> None:
    bad = dict.fromkeys(("response", "question", "detail", "problem", "outcome"), HOSTILE)
    tests = [{"test": 0, "outcome": HOSTILE, "detail": HOSTILE, "errors": HOSTILE}]
    write(bare, "train", 1, [row(1, tests=tests, reward_parts=[(HOSTILE, 1.0)], **bad)])
    (bare / "metrics.jsonl").write_text(json.dumps({"step": 1, f"judge/outcome/{HOSTILE}": 0.5}) + "\n")
    (bare / "run.json").write_text(json.dumps({"recipe": HOSTILE}))
    (bare / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    page = Page(write_report(bare))
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not [tag for tag in page.tags if tag[0] == "img" or any(name.startswith("on") for name in tag[1])]
    assert "window.owned" not in page.scripts[1]
    assert json.loads(page.scripts[0])[0]["series"][0]["name"] == f"judge/outcome/{HOSTILE}"
    for character in ("\x1b", "\u202e", "\u2028"):
        assert character not in page.source
    assert "<script>window.owned=1</script>" in page.text  # as text
    assert "\\x1b[2J\\u202e" in page.text


def test_report_stays_small(bare: Path) -> None:
    long = row(1, response="x" * 10**7, question="y\n" * 10**6, detail="z" * 10**6)
    write(bare, "train", 1, [long, row(1, 1), row(1, 2)])
    names = [f"judge/outcome/{place}" for place in range(30)] + ["critic/rewards/mean", "actor/entropy"]
    lines = [json.dumps({"step": step} | dict.fromkeys(names, step / 7)) for step in range(4_000)]
    (bare / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    page = Page(write_report(bare))
    assert len(page.source) < MEGABYTES_5
    outcomes = next(chart for chart in json.loads(page.scripts[0]) if chart["title"] == "Outcomes")
    assert len(outcomes["series"]) == 8
    assert max(len(each["steps"]) for each in outcomes["series"]) <= 600
    assert "22 further metrics are left out." in page.text
    assert "characters ...]" in page.text


def test_missing_and_damaged_files_are_no_error(bare: Path, quickstart: Path) -> None:
    page = Page(write_report(bare))
    for says in ("No metrics were recorded.", "No samples were recorded.", "Not recorded in this run."):
        assert says in page.text
    shutil.copytree(quickstart, bare / "copy")
    for path in (bare / "copy" / "rollouts").iterdir():
        path.write_bytes(b"damaged")
    page = Page(write_report(bare / "copy"))
    assert "No samples were recorded." in page.text
    assert "not recorded" in page.text  # intervals
    (bare / "metrics.jsonl").write_text('{"step": 1, "critic/rewards/mean": NaN}\n{"step": 2}\nhalf')
    assert "No metrics were recorded." in Page(write_report(bare)).text


def test_environment_of_every_start(bare: Path) -> None:
    starts = [{"python": "3.11.7", "packages": {"torch": "2.13"}}, {"python": "3.12.1"}]
    (bare / "environment.json").write_text(json.dumps({"starts": starts[:1]}))
    assert "python3.11.7packages.torch2.13" in Page(write_report(bare)).text
    (bare / "environment.json").write_text(json.dumps({"starts": starts}))
    assert "start 2: python3.12.1" in Page(write_report(bare)).text


def test_no_run_is_an_error(tmp_path: Path, bare: Path) -> None:
    with pytest.raises(RunDirError, match="does not exist"):
        write_report(tmp_path / "nothing")
    with pytest.raises(RunDirError, match="cannot write to"):
        write_report(bare, bare / "config.yaml" / "report.html")


def test_an_output_that_is_no_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("steps: 3\n")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for output in (tmp_path, pipe):
        with pytest.raises(RunDirError, match="is a directory or a device"):
            write_report(tmp_path, output)
    assert pipe.is_fifo()
    with pytest.raises(RunDirError, match="cannot write"):
        write_report(tmp_path, tmp_path / ("x" * 300))
