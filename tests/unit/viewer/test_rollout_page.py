"""A sample on its page: texts, tokens, tests, turns and group; problems and their history; search."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dojang
from dojang.core.run_dir import RunDir
from dojang.viewer.token_texts import decode_tokens
from rollout_files import row, write
from synthetic_run import NEEDLE, make_run

Serve = Callable[..., httpx.Client]
IDS = {"kind": "train", "step": 1, "prompt_index": 0, "index": 0, "role": "policy", "turn": 0}


def ask(client: httpx.Client, path: str, **params: Any) -> Any:
    reply = client.get(f"/api/runs/run/{path}", params=params)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    few = {"eval": {"problems": 4, "every": 2}, "rollout": {"prompts_per_step": 2, "group_size": 4}}
    dojang.train("quickstart", steps=2, run_dir=run, **few)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("steps: 3\n")
    return path


def write_values(run: Path, rows: list[dict[str, Any]]) -> None:
    ids = {"prompt_index": pa.int64(), "index": pa.int32(), "role": pa.string(), "turn": pa.int32()}
    schema = pa.schema({**ids, "trainer_logprobs": pa.list_(pa.float32()), "entropies": pa.list_(pa.float32())})
    (run / "token_values").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), run / "token_values" / "train-000001.parquet")


def write_vocabulary(run: Path, parts: list[bytes | None], role: str = "") -> None:
    name = f"vocabulary-{role}.parquet" if role else "vocabulary.parquet"
    pq.write_table(pa.table({"bytes": pa.array(parts, pa.binary())}), run / name)


def test_every_sample_of_a_real_run_is_shown_as_it_was_trained(serve: Serve, quickstart: Path) -> None:
    client = serve(quickstart)
    rows = pq.read_table(RunDir(quickstart).rollouts("train", 2)).to_pylist()
    for each in rows:
        ids = {key: each[key] for key in ("step", "prompt_index", "index", "role", "turn")}
        found = ask(client, "rollout", kind="train", **ids)
        for key in ("question", "prompt", "response", "detail", "isolation"):
            assert found[key] == each[key]
        assert found["row"]["problem"] == each["problem"]
        assert found["advantage"] == each["advantage"]
        assert found["reward_parts"] == dict(each["reward_parts"])
        assert [token["id"] for token in found["tokens"]] == each["tokens"]
        assert [token["sampled"] for token in found["tokens"]] == each["mask"]
        for token, logprob, sampled in zip(found["tokens"], each["logprobs"], each["mask"], strict=True):
            assert token["logprob"] == (pytest.approx(logprob, rel=1e-5) if sampled else None)
        group = [other for other in rows if other["prompt_index"] == each["prompt_index"]]
        assert [other["response"] for other in found["group"]] == [other["response"] for other in group]
        assert [other["reward"] for other in found["group"]] == [other["reward"] for other in group]
        assert (found["recorded"]["vocabulary"], found["recorded"]["token_values"]) == (True, True)
        sampled = [token for token in found["tokens"] if token["sampled"]]
        assert "".join(token["text"] for token in sampled).startswith(each["response"])
        for token in sampled:  # before and after an update of the weights
            assert token["trainer_logprob"] == pytest.approx(token["logprob"], abs=0.5)
            assert token["entropy"] >= 0
        whole = client.get("/api/runs/run/text", params={"kind": "train", **ids, "column": "prompt"})
        assert whole.text == each["prompt"]
        assert whole.headers["content-type"].startswith("text/plain")
        assert whole.headers["content-disposition"] == 'attachment; filename="prompt.txt"'


def test_values_of_tokens_are_joined(serve: Serve, run: Path) -> None:
    spans = [{"version": 4, "start": 1, "end": 2}, {"version": 5, "start": 2, "end": 3}]
    write(run, "train", 1, [row(1, spans=spans), row(1, 1, role="tester")])
    write_values(
        run,
        [
            {"prompt_index": 1, "index": 1, "role": "tester", "turn": 0, "trainer_logprobs": [-9.0], "entropies": None},
            {**{key: IDS[key] for key in ("prompt_index", "index", "role", "turn")}}
            | {"trainer_logprobs": [-0.25, float("nan")], "entropies": [1.5, 2.5]},
        ],
    )
    write_vocabulary(run, [b"", b"Q:", b" 4", None])
    write_vocabulary(run, [b"", b"one", b"two"], role="tester")
    client = serve(run)
    found = ask(client, "rollout", **IDS)
    assert found["recorded"] == {"token_values": True, "vocabulary": True, "tests": False}
    assert [each["text"] for each in found["tokens"]] == ["Q:", " 4", ""]
    assert [each["trainer_logprob"] for each in found["tokens"]] == [None, -0.25, None]
    assert [each["entropy"] for each in found["tokens"]] == [None, 1.5, 2.5]
    assert [each["version"] for each in found["tokens"]] == [None, 4, 5]
    other = ask(client, "rollout", **{**IDS, "prompt_index": 1, "index": 1, "role": "tester"})
    assert [each["text"] for each in other["tokens"]] == ["one", "two", ""]
    assert [each["trainer_logprob"] for each in other["tokens"]] == [None, -9.0, None]


def test_missing_and_damaged_records_are_not_recorded(serve: Serve, run: Path) -> None:
    write(run, "train", 1, [row(1)])
    client = serve(run)
    assert not any(ask(client, "rollout", **IDS)["recorded"].values())
    (run / "vocabulary.parquet").write_bytes(b"PAR1 no")
    (run / "token_values").mkdir()
    (run / "token_values" / "train-000001.parquet").write_bytes(b"")
    found = ask(client, "rollout", **IDS)
    assert not any(found["recorded"].values())
    assert [each["text"] for each in found["tokens"]] == [None] * 3


@pytest.mark.parametrize(
    ("parts", "texts"),
    [
        ([b"a", b"\xe2\x82", b"\xac!"], ["a", "⟨e2 82⟩", "€!"]),
        ([b"x\xff", b"y"], ["x⟨ff⟩", "y"]),
        ([b"\xe2", None, b"\x82\xac"], ["⟨e2⟩", "", "€"]),
        ([b"\xe2", b"a"], ["⟨e2⟩", "⟨e2⟩a"]),
        (["🙂".encode()[:1], "🙂".encode()[1:3], "🙂".encode()[3:] + b"ok"], ["⟨f0⟩", "⟨f0 9f 99⟩", "🙂ok"]),
    ],
)
def test_split_characters_are_joined(parts: list[bytes | None], texts: list[str]) -> None:
    assert decode_tokens(parts) == texts


def test_turns_tests_and_long_texts(serve: Serve, run: Path) -> None:
    test = {"test": 3, "outcome": "wrong", "cpu_s": 0.5, "wall_s": float("nan"), "memory_mb": 9.0, "output": "5\n"}
    long = "é" * 300_000
    first = row(1, tests=[test], role="coder", response=long)
    first["turns"] = [{"role": "assistant", "start": 1, "end": 3, "reward": 0.5}]
    second = row(1, role="coder", turn=1, response="better", outcome="accepted")
    write(run, "train", 1, [second, first, row(1, index=1, prompt_index=0, role="coder")])
    client = serve(run)
    found = ask(client, "rollout", **{**IDS, "role": "coder"})
    assert found["tests"][0] | {"output": "", "errors": ""} == {
        "test": 3,
        "outcome": "wrong",
        "cpu_s": 0.5,
        "wall_s": None,
        "memory_mb": 9.0,
        "exit_code": None,
        "signal": None,
        "detail": "",
        "output": "",
        "errors": "",
    }
    assert found["tests"][0]["output"] == "5\n"
    assert found["environment_turns"] == first["turns"]
    assert (len(found["response"]), found["cut"]) == (200_000, {"response": 300_000})
    assert [(each["turn"], each["response"]) for each in found["turns"]] == [(1, "better")]
    assert [(each["index"], each["turn"]) for each in found["group"]] == [(0, 0), (0, 1), (1, 0)]
    assert client.get("/api/runs/run/text", params={**IDS, "role": "coder", "column": "response"}).text == long


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": 7}, "no sample of 'train' with step 7"),
        ({"role": "../x"}, "role '../x'"),
        ({"kind": "../../x"}, "no sample of"),
        ({"step": ""}, "step is missing"),
        ({"prompt_index": "0 OR 1"}, "no whole number"),
        ({"column": "tokens"}, "is no text"),
    ],
)
def test_samples_that_do_not_exist_are_named(serve: Serve, run: Path, change: dict[str, Any], said: str) -> None:
    write(run, "train", 1, [row(1)])
    client = serve(run)
    reply = client.get(
        "/api/runs/run/text" if "column" in change else "/api/runs/run/rollout", params={**IDS, **change}
    )
    assert (reply.status_code, said in reply.json()["error"]) == (400, True), reply.text


def test_problems_and_their_history(serve: Serve, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1200, per_step=100, problems=30, evaluations=6)
    client = serve(run)
    rows = [each for file in sorted((run / "rollouts").glob("train-*")) for each in pq.read_table(file).to_pylist()]
    found = ask(client, "problems", sort="-accepted", limit=1000)
    assert found["total"] == len(found["rows"]) == len({each["problem"] for each in rows})
    for shown in found["rows"]:
        mine = [each for each in rows if each["problem"] == shown["problem"]]
        accepted = [each for each in mine if each["outcome"] == "accepted"]
        rewards = [each["reward"] for each in mine if each["reward"] is not None]
        assert shown == {
            "problem": mine[0]["problem"],
            "data_source": mine[0]["data_source"],
            "samples": len(mine),
            "accepted": len(accepted),
            "mean_reward": pytest.approx(sum(rewards) / len(rewards)),
            "first_step": mine[0]["step"],
            "last_step": mine[-1]["step"],
            "first_accepted_step": accepted[0]["step"] if accepted else None,
        }
    counts = [each["accepted"] for each in found["rows"]]
    assert counts == sorted(counts, reverse=True)
    name = found["rows"][0]["problem"]
    assert [each["problem"] for each in ask(client, "problems", q=name[-6:].upper())["rows"]] == [name]
    history = ask(client, "problem", id=name)
    assert history["question"] == next(each["question"] for each in rows if each["problem"] == name)
    trained = [each for each in history["history"] if each["kind"] == "train"]
    assert sum(each["samples"] for each in trained) == sum(each["problem"] == name for each in rows)
    assert [each["step"] for each in trained] == sorted({each["step"] for each in rows if each["problem"] == name})
    reply = client.get("/api/runs/run/problem", params={"id": "x'; DROP"})
    assert (reply.status_code, "no sample" in reply.json()["error"]) == (400, True)


def finished(client: httpx.Client, **params: Any) -> Any:
    end = time.monotonic() + 30
    while not (found := ask(client, "rollouts", **params))["search"]["done"]:
        assert time.monotonic() < end, found["search"]
    return found


def test_search_finds_texts_with_filters_and_orders(serve: Serve, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1000, per_step=100)
    client = serve(run)
    found = finished(client, q=NEEDLE.upper(), sort="step")
    assert [each["step"] for each in found["rows"]] == list(range(1, 11))
    assert found["search"] == {"files": 10, "of": 10, "done": True, "found": 10}
    assert found["total"] == 10
    assert [each["step"] for each in finished(client, q=NEEDLE, from_step=4, to_step=6, sort="-step")["rows"]] == [
        6,
        5,
        4,
    ]
    assert finished(client, q="problem/000000")["total"] == 8
    for hostile in ("%", "' OR 1=1 --", "(?i).*", "\\", "[", "never said"):
        assert finished(client, q=hostile)["total"] == 0
    assert ask(client, "rollouts", q="")["search"] is None


def test_a_new_search_pauses_the_older_one(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", 600, per_step=10, tokens=4, characters=40)
    seen: list[str] = []
    from dojang.viewer.search import Searches

    plain = Searches._search

    def slowly(self: Searches, text: str, file: Any) -> Any:
        seen.append(text)
        time.sleep(0.04)
        return plain(self, text, file)

    monkeypatch.setattr(Searches, "_search", slowly)
    client = serve(run)
    first = ask(client, "rollouts", q="sum")["search"]
    assert not first["done"]
    assert finished(client, q=NEEDLE)["total"] == 60
    assert seen.count("sum") < 60
    before = len(seen)
    assert finished(client, q="sum")["search"]["files"] == 60  # goes on where it was
    assert seen.count("sum") <= 62
    assert len(seen) - before <= 62
