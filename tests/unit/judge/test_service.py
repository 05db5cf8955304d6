"""The judge service, over real connections."""

import asyncio
import itertools
import json
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_service import PATIENCE, FakeJudge, RunningService, request, service_process, until

from dojang.core.errors import ConfigError
from dojang.judge.json_schema import dump, parse
from dojang.judge.server import serve
from dojang.judge.service import ServiceOptions
from dojang.programs import IoTest, Isolation, Judgement, TestSuite
from dojang.types import Outcome

TOKEN = "s3cret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
OPTIONS = ServiceOptions(
    token=TOKEN, queue=2, workers=1, isolation=Isolation.SECCOMP, body_mb=0.25, test_suites_mb=1, upload_s=PATIENCE
)


@pytest.fixture
def service() -> Iterator[RunningService]:
    with RunningService(OPTIONS) as running:
        yield running


@pytest.fixture
def client(service: RunningService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, headers=BEARER, timeout=PATIENCE, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def shared_service() -> Iterator[RunningService]:
    """Shared by tests that leave no state behind."""
    with RunningService(OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def caller(shared_service: RunningService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared_service.url, headers=BEARER, timeout=PATIENCE, trust_env=False) as client:
        yield client


def run_code(client: httpx.Client, code: str, language: str = "cpp", **fields: Any) -> dict[str, Any]:
    reply = client.post("/run_code", json={"code": code, "language": language, "stdin": "in", **fields})
    assert reply.status_code == 200
    content = reply.json()
    assert set(content) == {"status", "message", "compile_result", "run_result", "executor_pod_name", "files"}
    return dict(content)


def in_background(client: httpx.Client, path: str, body: bytes) -> tuple[threading.Thread, list[httpx.Response]]:
    replies: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: replies.append(client.post(path, content=body)))
    thread.start()
    return thread, replies


def test_judge_submission(caller: httpx.Client) -> None:
    reply = caller.post("/v1/judge", content=request("right"))
    judgement = parse(Judgement, reply.content)
    assert (judgement.outcome, judgement.passed, judgement.total) == (Outcome.ACCEPTED, 1, 1)
    assert judgement.isolation is Isolation.SECCOMP
    assert judgement.seconds > 0
    assert parse(Judgement, caller.post("/v1/judge", content=request("other")).content).outcome is Outcome.WRONG


def test_stored_test_suite_is_named_by_digest(caller: httpx.Client) -> None:
    suite = TestSuite((IoTest("1", "2"), IoTest("3", "4")))
    named = json.dumps({"language": "cpp", "source": "right", "test_suite_digest": suite.digest})
    reply = caller.post("/v1/judge", content=named)
    assert (reply.status_code, reply.json()["error"]) == (404, "unknown_test_suite")
    assert caller.put(f"/v1/test-suites/{suite.digest}", content=dump(suite)).status_code == 200
    assert caller.put(f"/v1/test-suites/{suite.digest}", content=dump(suite)).status_code == 200
    assert parse(Judgement, caller.post("/v1/judge", content=named).content).total == 2
    reply = caller.put(f"/v1/test-suites/{'0' * 64}", content=dump(suite))
    assert (reply.status_code, reply.json()["error"]) == (422, "wrong_digest")


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer", TOKEN, f"Basic {TOKEN}", "Bearer \xe9"])
@pytest.mark.parametrize("path", ["/v1/judge", "/run_code"])
def test_missing_token_is_unauthorized(shared_service: RunningService, given: str | None, path: str) -> None:
    headers = {} if given is None else {b"Authorization": given.encode("latin-1")}
    reply = httpx.post(
        shared_service.url + path, content=request("unseen"), headers=headers, timeout=PATIENCE, trust_env=False
    )
    assert reply.status_code == 401
    assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert reply.json()["error"] == "unauthorized"
    assert all(each.source != "unseen" for each in shared_service.judge.seen)


def test_health_and_metrics_need_no_token(service: RunningService, client: httpx.Client) -> None:
    health = httpx.get(f"{service.url}/health", timeout=PATIENCE, trust_env=False)
    assert health.json() == {"status": "ok", "isolation": "seccomp", "workers": 1, "waiting": 0, "running": 0}
    client.post("/v1/judge", content=request("right"))
    client.post("/v1/judge", content=request("raise", language="cpp20"))
    client.post("/v1/judge", content=request("raise", language="klingon"))
    client.post("/v1/judge", content=b"{")
    reply = httpx.get(f"{service.url}/metrics", timeout=PATIENCE, trust_env=False)
    assert reply.headers["content-type"].startswith("text/plain; version=")
    for line in (
        'dojang_judge_submissions_total{isolation="seccomp",language="python",outcome="accepted"} 1.0',
        'dojang_judge_submissions_total{isolation="seccomp",language="other",outcome="judge_error"} 1.0',
        'dojang_judge_rejected_total{reason="invalid"} 1.0',
        'dojang_judge_rejected_total{reason="unfit"} 1.0',
        "dojang_judge_machinery_failures_total 1.0",
        "dojang_judge_seconds_count 2.0",
        "dojang_judge_waiting 0.0",
        "dojang_judge_running 0.0",
    ):
        assert line in reply.text


def test_exception_in_judge_is_judge_error(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    judgement = parse(Judgement, client.post("/v1/judge", content=request("raise")).content)
    assert judgement.outcome is Outcome.JUDGE_ERROR
    assert judgement.detail == "the judge raised ValueError: the machinery broke"
    assert "the judge raised ValueError" in caplog.text
    assert "broke" not in caplog.text
    assert TOKEN not in caplog.text


def test_invalid_request_lists_all_problems(caller: httpx.Client) -> None:
    reply = caller.post("/v1/judge", json={"language": "cpp", "test_suite": {"tests": [{"input": "1"}]}})
    assert reply.status_code == 422
    assert reply.json()["error"] == "invalid"
    assert reply.json()["problems"] == ["source: Field required", "test_suite.tests.0.output: Field required"]
    assert reply.json()["detail"] == "; ".join(reply.json()["problems"])
    assert caller.post("/run_code", json={"code": "x", "run_timeout": 0}).status_code == 422
    assert (caller.get("/v1/judge").status_code, caller.get("/v1/judge").json()["error"]) == (405, "method_not_allowed")
    assert caller.get("/nothing").json() == {"error": "not_found", "detail": "Not Found"}


def test_unsupported_submission_is_rejected(caller: httpx.Client) -> None:
    suite = {"tests": [{"input": "1", "output": "1"}]}
    reply = caller.post("/v1/judge", json={"language": "klingon", "source": "nuqneH", "test_suite": suite})
    assert (reply.status_code, reply.json()["error"]) == (422, "unfit")
    assert "'klingon'" in reply.json()["detail"]
    assert "cpp17" in reply.json()["detail"]
    calls = {"tests": [{"code": "assert candidate(1) == 1", "function": "f"}]}
    reply = caller.post("/v1/judge", json={"language": "cpp17", "source": "int f(int);", "test_suite": calls})
    assert (reply.status_code, reply.json()["error"]) == (422, "unfit")
    assert "cannot judge a program in cpp17" in reply.json()["detail"]


@pytest.mark.parametrize("chunks", [1, 100])
def test_too_large_body_is_rejected_while_it_arrives(
    caller: httpx.Client, monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    """Sent in chunks, without Content-Length."""
    monkeypatch.setattr("dojang.judge.service.DISCARD_S", PATIENCE)
    reply = caller.post("/v1/judge", content=(b" " * (2**19 // chunks) for _ in range(chunks)))
    assert (reply.status_code, reply.json()["error"]) == (413, "too_large")
    assert caller.post("/v1/judge", content=b" " * 2**19).status_code == 413
    assert caller.post("/v1/judge", content=request()).status_code == 200


def test_endless_body_is_cut_off(caller: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dojang.judge.service.DISCARD_S", 0.1)
    try:
        reply = caller.post("/v1/judge", content=itertools.repeat(b" " * 2**12))
    except httpx.TransportError:  # cut off before it could read why
        pass
    else:
        assert reply.status_code == 413
    assert caller.post("/v1/judge", content=request()).status_code == 200


def test_full_queue_is_busy(service: RunningService, client: httpx.Client) -> None:
    waiting = [in_background(client, "/v1/judge", request("wait")) for _ in range(2)]
    service.wait(lambda: len(service.judge.seen) == 2)
    assert client.get("/health").json()["running"] == 2
    reply = client.post("/v1/judge", content=request())
    assert (reply.status_code, reply.json()["error"], reply.headers["Retry-After"]) == (429, "busy", "1")
    reply = client.post("/run_code", json={"code": "x", "language": "cpp"})  # as veRL's client understands it
    assert (reply.status_code, reply.headers["Retry-After"]) == (504, "1")
    service.call(service.judge.release.set)
    for thread, replies in waiting:
        thread.join(PATIENCE)
        assert parse(Judgement, replies[0].content).outcome is Outcome.ACCEPTED
    assert client.post("/v1/judge", content=request()).status_code == 200


def test_judge_gets_at_most_slots_submissions() -> None:
    options = ServiceOptions(queue=4, slots=1)
    with RunningService(options) as service, httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
        waiting = [in_background(client, "/v1/judge", request("wait")) for _ in range(2)]
        service.wait(lambda: len(service.judge.seen) == 1)
        until(lambda: client.get("/health").json()["waiting"] == 1)
        assert client.get("/health").json()["running"] == 1
        service.call(service.judge.release.set)
        for thread, replies in waiting:
            thread.join(PATIENCE)
            assert replies[0].status_code == 200


def test_disconnected_client_cancels_its_request(service: RunningService, client: httpx.Client) -> None:
    body = request("wait")
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        head = ("POST /v1/judge HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}", f"Content-Length: {len(body)}")
        connection.sendall("\r\n".join((*head, "", "")).encode() + body)
        service.wait(lambda: service.judge.seen)
    service.wait(lambda: service.judge.cancelled == 1)
    until(lambda: not client.get("/health").json()["running"])
    assert 'reason="disconnected"' in client.get("/metrics").text


def test_draining_finishes_running_requests(service: RunningService, client: httpx.Client) -> None:
    thread, replies = in_background(client, "/v1/judge", request("wait"))
    service.wait(lambda: service.judge.seen)
    service.begin_to_stop()
    until(lambda: client.get("/health").status_code == 503)
    assert client.get("/health").json()["status"] == "draining"
    refused = client.post("/v1/judge", content=request())
    assert (refused.status_code, refused.json()["error"], refused.headers["Retry-After"]) == (503, "draining", "1")
    assert service.judge.closed == 0
    service.call(service.judge.release.set)
    thread.join(PATIENCE)
    assert parse(Judgement, replies[0].content).outcome is Outcome.ACCEPTED
    service.stop()
    assert service.judge.closed == 1


def test_draining_timeout_returns_503() -> None:
    options = ServiceOptions()
    with (
        RunningService(options, drain_s=0.01) as service,
        httpx.Client(base_url=service.url, timeout=PATIENCE) as client,
    ):
        thread, replies = in_background(client, "/v1/judge", request("wait"))
        service.wait(lambda: service.judge.seen)
        service.begin_to_stop()
        thread.join(PATIENCE)
        assert (replies[0].status_code, replies[0].json()["error"]) == (503, "draining")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_and_exits_cleanly(number: signal.Signals) -> None:
    with service_process() as (process, url), httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        thread, replies = in_background(client, "/v1/judge", request("wait"))
        until(lambda: client.get("/health").json()["running"] == 1)
        process.send_signal(number)
        until(lambda: client.get("/health").status_code == 503)
        assert client.post("/v1/judge", content=request()).status_code == 503
        process.send_signal(number)  # no more waiting
        thread.join(PATIENCE)
        assert replies[0].status_code == 503
        out, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out.strip(), errors) == (0, "closed 1", "")


def test_sandbox_fusion_success(service: RunningService, client: httpx.Client) -> None:
    reply = run_code(client, "fine", run_timeout=3, compile_timeout=4, memory_limit_MB=100, files={}, fetch_files=[])
    assert reply == {
        "status": "Success",
        "message": "",
        "compile_result": {
            "status": "Finished",
            "execution_time": None,
            "return_code": 0,
            "stdout": "",
            "stderr": "a warning",
        },
        "run_result": {
            "status": "Finished",
            "execution_time": 0.25,
            "return_code": 0,
            "stdout": "in\ufffd",
            "stderr": "",
        },
        "executor_pod_name": None,
        "files": {},
    }
    language, source, stdin, limits = service.judge.ran[0]
    assert (language, source, stdin) == ("cpp", "fine", "in")
    assert (limits.cpu_s, limits.idle_s, limits.compile_s, limits.memory_mb) == (3, 3, 4, 100)


@pytest.mark.parametrize(
    ("code", "compiled", "ran"),
    [
        ("compile error", ("Finished", 1), None),
        ("compile forever", ("TimeLimitExceeded", None), None),
        ("crash", ("Finished", 0), ("Finished", -11)),
        ("exit 3", ("Finished", 0), ("Finished", 3)),
        ("too much memory", ("Finished", 0), ("Finished", 1)),
        ("loop", ("Finished", 0), ("TimeLimitExceeded", None)),
    ],
)
def test_sandbox_fusion_failure(
    caller: httpx.Client, code: str, compiled: tuple[str, int | None], ran: tuple[str, int | None] | None
) -> None:
    def brief(result: dict[str, Any] | None) -> tuple[str, int | None] | None:
        return None if result is None else (result["status"], result["return_code"])

    reply = run_code(caller, code)
    assert reply["status"] == "Failed"
    assert brief(reply["compile_result"]) == compiled
    assert brief(reply["run_result"]) == ran
    in_python = run_code(caller, code, "python")  # has no compiler there: what cannot be read fails when it is run
    assert in_python["status"] == "Failed"
    assert in_python["compile_result"] is None
    assert brief(in_python["run_result"]) == (ran or ("Finished", 1))


def test_output_before_failure_is_kept(caller: httpx.Client) -> None:
    assert run_code(caller, "compile error")["compile_result"]["stderr"] == "expected ';'"
    assert run_code(caller, "compile error", "python")["run_result"]["stderr"] == "expected ';'"
    crashed = run_code(caller, "crash")["run_result"]
    assert (crashed["stdout"], crashed["stderr"]) == ("some", "Segmentation fault")
    assert run_code(caller, "loop")["run_result"]["stdout"] == "so far"
    assert run_code(caller, "too much memory")["run_result"]["stderr"] == "over 256 MB"


@pytest.mark.parametrize(
    ("code", "language", "fields", "message"),
    [
        ("x", "java", {}, "language 'java' is not supported; this judge runs cpp, python"),
        ("x", "cpp", {"files": {"a": "eA=="}}, "files not supported by this judge; send an empty value"),
        ("x", "cpp", {"fetch_files": ["a"], "args": ["-v"]}, "fetch_files and args not supported"),
        ("judge error", "cpp", {}, "no compiler"),
        ("raise", "cpp", {}, "the judge raised ValueError: the machinery broke"),
    ],
)
def test_unsupported_run_code_is_sandbox_error(
    caller: httpx.Client, code: str, language: str, fields: dict[str, Any], message: str
) -> None:
    reply = run_code(caller, code, language, **fields)
    assert reply["status"] == "SandboxError"
    assert reply["message"].startswith(message)
    assert (reply["compile_result"], reply["run_result"]) == (None, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "judge.example"])
def test_public_host_needs_a_token(host: str) -> None:
    judge = FakeJudge()
    with pytest.raises(ConfigError, match="set a token"):
        asyncio.run(serve(judge, ServiceOptions(), host=host, port=0))
    assert judge.closed == 1


def test_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="choose another port"):
        asyncio.run(serve(FakeJudge(), ServiceOptions(), port=taken.getsockname()[1]))


@pytest.mark.parametrize("token", ["", " ", "two words", "t\u00f6ken", "line\n"])
def test_token_must_fit_a_header(token: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        ServiceOptions(token=token)
