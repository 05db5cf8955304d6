"""The viewer's server: its list of runs, tables of rollouts, metrics, and who may ask."""

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from dojang.core.errors import ConfigError, RunDirError
from dojang.core.run_dir import RunDir
from dojang.core.run_files import RunFiles
from dojang.viewer.server import Viewer
from rollout_files import row, write
from synthetic_run import make_run

Serve = Callable[..., httpx.Client]


def ask(client: httpx.Client, path: str, **params: Any) -> Any:
    reply = client.get(f"/api/{path}", params=params)
    assert reply.status_code == 200, reply.text
    return reply.json()


def error(client: httpx.Client, path: str, status: int = 400, **params: Any) -> str:
    reply = client.get(f"/api/{path}", params=params)
    assert reply.status_code == status, reply.text
    return str(reply.json()["error"])


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "long", 2000, per_step=100, evaluations=5)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A small run that goes on."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("steps: 9\n")
    (path / "metrics.jsonl").write_text('{"step": 1, "critic/rewards/mean": 0.5}\n')
    for step in (1, 2):
        write(path, "train", step, [row(step, index) for index in range(4)])
    return path


def all_rows(path: Path, kind: str) -> list[dict[str, Any]]:
    files = sorted((path / "rollouts").glob(f"{kind}-*.parquet"))
    return [each for file in files for each in pq.read_table(file).to_pylist()]


def test_runs_and_state_are_listed(serve: Serve, synthetic: Path, run: Path) -> None:
    client = serve(synthetic, run)
    long, short = ask(client, "runs")["runs"]
    assert (long["id"], long["status"], long["live"], long["steps"], long["total_steps"]) == (
        *("long", "finished", False, 20, 20),
    )
    assert (short["id"], short["status"], short["live"], short["path"]) == ("run", "running", True, str(run))
    state = ask(client, "state")["runs"]["long"]
    assert (state["status"], state["step"]) == ("finished", 20)


@pytest.mark.parametrize("sort", ["step", "reward", "advantage", "response_length", "problem", "outcome", "version"])
def test_rollouts_are_sorted_by_any_column(serve: Serve, synthetic: Path, sort: str) -> None:
    client = serve(synthetic)
    rows = all_rows(synthetic, "train")
    for sign in (1, -1):
        known = [each for each in rows if each[sort] is not None]
        ties = sorted(known, key=lambda each: (each["step"], each["prompt_index"], each["index"]))
        expected = sorted(ties, key=lambda each: each[sort], reverse=sign < 0)  # keeps equal rows in their order
        found = ask(client, "runs/long/rollouts", sort=sort if sign > 0 else f"-{sort}", limit=50, offset=30)
        assert found["total"] == len(rows)
        keys = ("step", "prompt_index", "index", sort)
        assert [[each[key] for key in keys] for each in found["rows"]] == [
            [each[key] for key in keys] for each in expected[30:80]
        ]


def test_rows_are_those_of_the_files(serve: Serve, synthetic: Path) -> None:
    found = ask(serve(synthetic), "runs/long/rollouts", sort="step", limit=1000, kind="test")["rows"]
    rows = all_rows(synthetic, "test")
    assert len(found) == len(rows) == 4 * 64
    rows.sort(key=lambda each: (each["step"], each["prompt_index"], each["index"]))
    for shown, each in zip(found, rows, strict=True):
        assert shown.pop("snippet") == each["response"][:160]
        assert shown.pop("kind") == "test"
        assert shown == {key: each[key] for key in shown}
        assert {"problem", "reward", "outcome", "response_length", "passed", "total"} <= set(shown)


def test_filters_meet(serve: Serve, synthetic: Path) -> None:
    client = serve(synthetic)
    rows = all_rows(synthetic, "train")
    wanted = {"outcome": "wrong,no_answer", "from_step": 3, "to_step": 9, "min_reward": 0.2, "data_source": "source-1"}
    found = ask(client, "runs/long/rollouts", **wanted, limit=1000, sort="-reward")
    expected = [
        each
        for each in rows
        if each["outcome"] in ("wrong", "no_answer")
        and 3 <= each["step"] <= 9
        and each["reward"] is not None
        and each["reward"] >= 0.2
        and each["data_source"] == "source-1"
    ]
    assert found["total"] == len(expected) == len(found["rows"]) > 0
    assert [each["reward"] for each in found["rows"]] == sorted((each["reward"] for each in expected), reverse=True)
    problem = rows[0]["problem"]
    one = ask(client, "runs/long/rollouts", problem=problem)
    assert {each["problem"] for each in one["rows"]} == {problem}
    assert one["total"] == sum(each["problem"] == problem for each in rows)
    assert ask(client, "runs/long/rollouts", outcome="never")["total"] == 0


def test_facets_count_samples(serve: Serve, synthetic: Path) -> None:
    client = serve(synthetic)
    found = ask(client, "runs/long/facets")
    rows = all_rows(synthetic, "train")
    assert found["kinds"] == {"test": [5, 20, 256], "train": [1, 20, 2000]}
    for column in ("outcome", "data_source", "finish"):
        names = {each[column] for each in rows}
        assert found[column] == {name: sum(each[column] == name for each in rows) for name in names}
    assert sum(ask(client, "runs/long/facets", step=3)["outcome"].values()) == 100


def test_metrics_have_meanings_and_values(serve: Serve, synthetic: Path) -> None:
    client = serve(synthetic)
    found = ask(client, "runs/long/metrics", names="critic/rewards/mean,no/such")
    lines = [json.loads(line) for line in (synthetic / "metrics.jsonl").read_text().splitlines()]
    expected = [(line["step"], line["critic/rewards/mean"]) for line in lines if "critic/rewards/mean" in line]
    assert list(found["series"]) == ["critic/rewards/mean"]
    series = found["series"]["critic/rewards/mean"]
    assert list(zip(series["step"], series["value"], strict=True)) == expected
    entry = next(each for each in found["catalogue"] if each["name"] == "actor/entropy")
    assert entry == {
        "name": "actor/entropy",
        "help": "Entropy of the policy, per token.",
        "unit": "nats",
        "group": "actor",
    }


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"sort": "reward; DROP TABLE x"}, "sort="),
        ({"sort": ""}, ""),
        ({"offset": "x"}, "offset='x' is no whole number"),
        ({"offset": "9" * 5000}, "no whole number"),
        ({"min_reward": "nan"}, "no finite number"),
        ({"max_reward": "inf"}, "no finite number"),
        ({"step": "1 OR 1=1"}, "step="),
        ({"turn": "1e3"}, "turn="),
    ],
)
def test_wrong_parameters_are_named(serve: Serve, run: Path, params: dict[str, str], word: str) -> None:
    client = serve(run)
    if word:
        assert word in error(client, "runs/run/rollouts", **params)
    else:
        assert ask(client, "runs/run/rollouts", **params)["total"] == 8


@pytest.mark.parametrize(
    "params",
    [
        {"kind": "../../etc/passwd"},
        {"kind": "train-000001.parquet\0"},
        {"outcome": "'; DROP TABLE samples; --"},
        {"problem": "%"},
        {"role": "policy' OR '1'='1"},
        {"offset": "99999999999999999999"},
        {"step": "-99999999999999999999"},
        {"limit": "-5"},
    ],
)
def test_hostile_parameters_find_nothing(serve: Serve, run: Path, params: dict[str, str]) -> None:
    assert ask(serve(run), "runs/run/rollouts", **params)["rows"] == []


@pytest.mark.parametrize("name", ["..", "%2e%2e%2f", "run%2f..%2f..", "run/../run", "none", "\0"])
def test_runs_that_are_not_shown_are_not_found(serve: Serve, run: Path, name: str) -> None:
    client = serve(run)
    reply = client.get(httpx.URL(f"{client.base_url}api/runs/{name.replace(chr(0), '%00')}/rollouts"))
    assert reply.status_code in (404, 400) or "run/../run" in name
    (run / "secret.txt").write_text("secret")
    for path in ("/static/../secret.txt", "/static/%2e%2e/%2e%2e/server.py", "/static//etc/passwd"):
        assert client.get(path).status_code == 404


def test_other_hosts_and_sites_are_refused(serve: Serve, run: Path) -> None:
    client = serve(run)
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80"):
        assert client.get("/api/runs", headers={"Host": host}).status_code in (400, 403)
    for host in ("localhost:9", "127.0.0.1", "[::1]:80"):
        assert client.get("/api/runs", headers={"Host": host}).status_code == 200
    reply = client.post("/api/runs/run/judge", json={})
    assert (reply.status_code, "X-Dojang" in reply.json()["error"]) == (403, True)
    headers = client.get("/api/runs").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert "access-control-allow-origin" not in headers


def test_a_token_is_needed_on_other_addresses(run: Path) -> None:
    with Viewer([run], host="0.0.0.0") as viewer:
        address, _, token = viewer.url.partition("/?token=")
        port = address.rpartition(":")[2]
        assert len(token) >= 32
        assert socket.gethostname() in address
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/api/runs").status_code == 401
            assert client.get("/", params={"token": "wrong"}).status_code == 401
            assert client.get("/api/runs", headers={"Cookie": f"dojang_view_{port}=wrong"}).status_code == 401
            assert client.get("/api/runs", headers={"Authorization": f"Bearer {token}"}).status_code == 200
            reply = client.get("/", params={"token": token, "a": "b c"})
            assert (reply.status_code, reply.headers["location"]) == (303, "/?a=b+c")
            cookie = reply.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert cookie.startswith(f"dojang_view_{port}=")
            assert client.get("/api/runs").status_code == 200
            assert client.post("/api/runs/run/judge", json={}).status_code == 403
    with pytest.raises(ConfigError, match="at least 16"):
        Viewer([run], token="short")


def test_a_directory_of_runs_shows_new_ones(serve: Serve, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dojang.viewer.run_list._REFRESH_S", {False: 0.0})
    client = serve(run.parent)
    assert [each["id"] for each in ask(client, "runs")["runs"]] == ["run"]
    shutil.copytree(run, run.parent / "second")
    assert [each["id"] for each in ask(client, "runs")["runs"]] == ["run", "second"]
    assert ask(client, "runs/second/rollouts")["total"] == 8
    shutil.rmtree(run.parent / "second")
    assert [each["id"] for each in ask(client, "runs")["runs"]] == ["run"]
    assert "there is no run 'second'" in error(client, "runs/second/rollouts", 404)
    other = run.parent / "other" / "run"
    shutil.copytree(run, other)
    both = serve(run, other)
    assert [each["id"] for each in ask(both, "runs")["runs"]] == ["run", "run-2"]


def test_a_run_without_permission_does_not_hide_the_others(
    serve: Serve, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, run.parent / "foreign")
    info = RunFiles.info

    def forbidden(files: RunFiles, name: str) -> object:  # the superuser may read everything
        if files.location.endswith("/foreign"):
            raise PermissionError(13, "Permission denied")
        return info(files, name)

    monkeypatch.setattr(RunFiles, "info", forbidden)
    assert [each["id"] for each in ask(serve(run.parent), "runs")["runs"]] == ["run"]


def test_a_place_without_runs_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunDirError, match="holds no run"):
            Viewer([path])


def test_nothing_is_left_behind(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    killed = tmp_path / "temporary" / "dojang-view-99999999-x"
    killed.mkdir()
    before = set(threading.enumerate())
    with Viewer([run]) as viewer:
        assert httpx.get(f"{viewer.url}api/runs/run/rollouts").json()["total"] == 8
        assert len(list((tmp_path / "temporary").iterdir())) == 1
    assert list((tmp_path / "temporary").iterdir()) == []
    left = [each for each in set(threading.enumerate()) - before if "AnyIO" not in each.name]
    assert left == []
    assert RunDir(run).rollouts("train", 1).exists()


def test_a_run_with_unreadable_metrics_does_not_hide_the_others(serve: Serve, run: Path) -> None:
    other = shutil.copytree(run, run.parent / "other")
    (other / "metrics.jsonl").unlink()
    (other / "metrics.jsonl").mkdir()
    client = serve(run.parent)
    for _ in range(2):  # the note stays
        good, bad = sorted(ask(client, "runs")["runs"], key=lambda each: str(each["id"]) != "run")
        assert good["steps"] == 1
        assert any("metrics.jsonl" in note for note in bad["notes"])
    assert ask(client, "state")["runs"]["other"]["step"] == 0
    assert "metrics.jsonl" in error(client, "runs/other/metrics")
    (other / "metrics.jsonl").rmdir()
    shutil.copy(run / "metrics.jsonl", other)
    assert ask(client, "runs/other/metrics")["catalogue"]


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_out_of_range_is_refused(run: Path, port: int) -> None:
    with pytest.raises(ConfigError, match=f"port={port} is no port"):
        Viewer([run], port=port)
