"""`dojang serve policy`: sessions, records, keys, and the contract that OpenEnv checks."""

import asyncio
import json
import signal
import subprocess
import sys
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from transformers import PreTrainedTokenizerBase
from typer.testing import CliRunner

import commands
from dojang.commands import app
from dojang.commands.serve_policy import PolicyOptions, serve, serve_until
from dojang.core.errors import ConfigError
from dojang.environments.policy_server.records import Recorder
from policy_clients import RandomEngine, policy_of

QUESTION: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
PATIENCE_S = 120.0
Test = Callable[[httpx.AsyncClient, str], Awaitable[None]]
OPENENV = "openenv==0.10.0"
VALIDATE = """
import importlib, sys, types
from pathlib import Path
folder, url = sys.argv[1:]
for name in ("openenv", "openenv.core", "openenv.core.harness", "openenv.core.harness.capture"):
    package = types.ModuleType(name)  # the packages themselves import much more than the check needs
    package.__path__ = [str(Path(folder, *name.split(".")))]
    sys.modules[name] = package
check = importlib.import_module("openenv.core.harness.capture.validate_llm")
report = check.validate_llm(url, "dojang-tiny", timeout=60)
print(report.ok, report.trainable, report.capture_level, report.param_fixes, report.findings)
"""


@pytest.fixture
def run_server(tokenizer: PreTrainedTokenizerBase) -> Callable[..., None]:
    """Runs a test against a server in this process."""

    def run(test: Test, *, engine: RandomEngine | None = None, record: Path | None = None, **options: Any) -> None:
        async def play(recorder: Recorder | None) -> None:
            stop, said = asyncio.Event(), list[str]()
            policy = policy_of(engine or RandomEngine(tokenizer), tokenizer)
            serving = asyncio.create_task(
                serve_until(stop, policy, "tiny", PolicyOptions(port=0, **options), said.append, recorder)
            )
            while not said:
                await asyncio.sleep(0.01)
            url = said[0].split()[2].removesuffix("/v1")
            try:
                async with httpx.AsyncClient(base_url=url, timeout=20) as http:
                    await test(http, url)
            finally:
                stop.set()
                await serving

        with nullcontext() if record is None else closing(Recorder(record)) as recorder:
            asyncio.run(play(recorder))

    return run


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "sessions.jsonl").read_text().splitlines()]


async def ask(http: httpx.AsyncClient, key: str = "", path: str = "", **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await http.post(f"{path}/v1/chat/completions", json={"messages": QUESTION, **body}, headers=headers)


def test_finished_sessions_are_recorded(run_server: Callable[..., None], tmp_path: Path) -> None:
    async def test(http: httpx.AsyncClient, url: str) -> None:
        for key, path in (("x:a", ""), ("", "/sessions/b"), ("x:c", ""), ("x:d", ""), ("x", ""), ("", "")):
            assert (await ask(http, key, path)).status_code == 200
        await ask(http, "x:a", temperature=0.5)
        assert (await http.post("/v1/sessions/a/reward", json={"reward": 0.5, "solved": True})).status_code == 200
        assert (await http.post("/v1/sessions/a/reward", json={"reward": 1})).status_code == 409
        assert (await http.post("/v1/sessions/unknown/reward", json={"reward": 1})).status_code == 404
        assert (await http.delete("/v1/sessions/b")).status_code == 200
        bad = await ask(http, "x:../up")
        assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_session")

    run_server(test, record=tmp_path / "records")
    rows = {row["session"]: row for row in read(tmp_path / "records")}
    assert list(rows) == ["a", "b", "c", "d"], "requests without a name are no sessions"
    assert (rows["a"]["reward"], rows["a"]["solved"]) == (0.5, True)
    assert len(rows["a"]["streams"]) == 2
    assert [rows[name]["reward"] for name in "bcd"] == [None] * 3
    assert "without a reward" in rows["b"]["ended"]
    assert "stopped" in rows["c"]["ended"]
    (stream,) = rows["c"]["streams"]
    assert {len(stream[key]) for key in ("tokens", "sampled", "logprobs", "versions")} == {len(stream["tokens"])}
    for sampled, logprob, version in zip(stream["sampled"], stream["logprobs"], stream["versions"], strict=True):
        assert (logprob < 0, version is not None) == (sampled, sampled)


def test_a_session_without_requests_ends_without_a_reward(run_server: Callable[..., None], tmp_path: Path) -> None:
    async def test(http: httpx.AsyncClient, url: str) -> None:
        await ask(http, "x:slow")
        for _ in range(100):
            if (tmp_path / "sessions.jsonl").read_text():
                break
            await asyncio.sleep(0.05)
        assert (await http.post("/v1/sessions/slow/reward", json={"reward": 1})).status_code == 409

    run_server(test, record=tmp_path, session_timeout_s=0.2)
    (row,) = read(tmp_path)
    assert (row["reward"], row["ended"]) == (None, "no request for 0.2 s")


def test_a_session_that_has_ended_stays_ended(run_server: Callable[..., None], tmp_path: Path) -> None:
    async def refused(http: httpx.AsyncClient, name: str) -> None:
        answer = await ask(http, f"x:{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_ended")
        assert answer.json()["error"]["message"] == f"the session {name!r} has ended; use another name"
        assert (await ask(http, path=f"/sessions/{name}")).status_code == 409
        assert (await http.post(f"/v1/sessions/{name}/reward", json={"reward": 0})).status_code == 409
        assert (await http.delete(f"/v1/sessions/{name}")).status_code == 409

    async def first(http: httpx.AsyncClient, url: str) -> None:
        for name in ("a", "b", "c"):
            assert (await ask(http, f"x:{name}")).status_code == 200
        assert (await http.post("/v1/sessions/a/reward", json={"reward": 1})).status_code == 200
        assert (await http.delete("/v1/sessions/b")).status_code == 200
        for name in ("a", "b"):
            await refused(http, name)

    async def second(http: httpx.AsyncClient, url: str) -> None:
        for name in ("a", "b", "c"):
            await refused(http, name)
        assert (await ask(http, "x:d")).status_code == 200

    run_server(first, record=tmp_path)
    with (tmp_path / "sessions.jsonl").open("a") as file:
        file.write('{"session": "d", "ended"')  # a line that was cut, by a full disk
    run_server(second, record=tmp_path)
    assert [(row["session"], row["reward"]) for row in read(tmp_path)] == [
        ("a", 1.0), ("b", None), ("c", None), ("d", None)
    ]  # fmt: skip
    run_server(first)  # without a record, a name is free in another server


def test_another_file_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sessions.jsonl").write_text("something else")
    with (
        closing(Recorder(tmp_path)) as recorder,
        pytest.raises(ConfigError, match=r"line 1 of .* is no session: b'something else'; choose another directory"),
    ):
        list(recorder.names())
    assert (tmp_path / "sessions.jsonl").read_text() == "something else"


def test_only_named_sessions_are_conversations(
    run_server: Callable[..., None], tokenizer: PreTrainedTokenizerBase
) -> None:
    """For the prefix cache: a request without a name is not continued."""
    engine = RandomEngine(tokenizer)

    async def test(http: httpx.AsyncClient, url: str) -> None:
        for key in ("x:a", "x:b", "x:a", "x", "", "x:b"):
            assert (await ask(http, key)).status_code == 200

    run_server(test, engine=engine)
    a, b, again, *unnamed, last = [each.conversation for each in engine.samplings]
    assert (again, last, unnamed) == (a, b, ["", ""])
    assert len({a, b, ""}) == 3


def test_a_token_is_needed_if_there_is_one(run_server: Callable[..., None]) -> None:
    async def test(http: httpx.AsyncClient, url: str) -> None:
        for key, status in (("", 401), ("wrong", 401), ("wrong:a", 401), ("se:cret", 200), ("se:cret:a", 200)):
            assert (await ask(http, key)).status_code == status
        assert (await ask(http, "wrong", "/sessions/a")).status_code == 401
        assert (await http.post("/v1/sessions/a/reward", json={"reward": 1})).status_code == 401
        given = {"authorization": "Bearer se:cret"}
        assert (await http.post("/v1/sessions/a/reward", json={"reward": 1}, headers=given)).status_code == 200

    run_server(test, token="se:cret")


def test_clients_choose_their_sampling(run_server: Callable[..., None]) -> None:
    async def test(http: httpx.AsyncClient, url: str) -> None:
        assert (await ask(http, temperature=0.3, top_p=0.5, top_k=5, min_p=0.1, seed=4)).status_code == 200
        assert (await ask(http, temperature=-1)).status_code == 400

    run_server(test)


def test_other_machines_are_served_with_a_token_only() -> None:
    with pytest.raises(ConfigError, match=r"--host 0.0.0.0 is reachable from other machines; give a --token"):
        serve("dojang-tiny", [], PolicyOptions(host="0.0.0.0"))
    assert "--record" in CliRunner().invoke(app, ["serve", "policy", "--help"]).output


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, Path]]:
    """`dojang serve policy dojang-tiny` in a child process."""
    folder = tmp_path_factory.mktemp("serve")
    command = [sys.executable, "-m", "dojang", "serve", "policy", "dojang-tiny", "--port", "0", "--record", str(folder)]
    with commands.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().split()[2], process, folder  # type: ignore[union-attr]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def openenv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published package, unpacked in a separate folder: it is not a dependency."""
    folder = tmp_path_factory.mktemp("openenv")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0", "--dest", str(folder)]
    done = subprocess.run([*command, OPENENV], capture_output=True, text=True, timeout=PATIENCE_S)
    found = list(folder.glob("*.whl"))
    if done.returncode or not found:
        pytest.skip(f"{OPENENV} cannot be fetched: {done.stderr.strip()[-200:]}")
    zipfile.ZipFile(found[0]).extractall(folder)
    return folder


@pytest.mark.slow
def test_openenv_accepts_the_server_for_training(tiny_server: tuple[str, Any, Path], openenv: Path) -> None:
    url, _, _ = tiny_server
    command = [sys.executable, "-c", VALIDATE, str(openenv), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True True tokens []"), done.stdout


def test_the_server_repeats_a_seed_and_ends_with_ctrl_c(tiny_server: tuple[str, Any, Path]) -> None:
    url, process, folder = tiny_server
    with openai.OpenAI(base_url=url, api_key="EMPTY") as client:
        (model,) = client.models.list().data
        create = client.chat.completions.create
        texts = {seed: create(model=model.id, messages=QUESTION, seed=seed, n=4) for seed in (1, 2)}
        again = create(model=model.id, messages=QUESTION, seed=1, n=4)
        with pytest.raises(openai.BadRequestError, match="outside the model's vocabulary"):
            client.completions.create(model=model.id, prompt=[10**6])
        assert [each.message for each in again.choices] == [each.message for each in texts[1].choices]
        with openai.OpenAI(base_url=url, api_key="EMPTY:first") as named:
            named.chat.completions.create(model=model.id, messages=QUESTION)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    (row,) = read(folder)
    assert (row["session"], row["reward"]) == ("first", None)
