"""RemoteJudge against real services, and against scripted replies where the order matters."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fake_service import PATIENCE, RunningService, service_process

from dojang.core.errors import ConfigError
from dojang.judge.client import RemoteJudge, RetryPolicy
from dojang.judge.json_schema import JudgeRequest, dump, parse
from dojang.judge.service import ServiceOptions
from dojang.programs import IoTest, Isolation, Judgement, Limits, Submission, TestResult, TestSuite
from dojang.types import Outcome

SUITE = TestSuite((IoTest("1", "1"), IoTest("2", "2")))
RIGHT = Submission("python", "right", SUITE)
ACCEPTED = Judgement(
    Outcome.ACCEPTED, (TestResult(0, Outcome.ACCEPTED), TestResult(1, Outcome.ACCEPTED)), 2, Isolation.LANDLOCK
)
TOKEN = "s3cret"

Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]


class Clock:
    """A clock that advances only in sleep()."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def judge(self, *urls: str, **options: Any) -> RemoteJudge:
        options = {"policy": RetryPolicy(retries=2, first_delay_s=1.0), **options}
        return RemoteJudge(
            urls or ("http://a",), TOKEN, clock=lambda: self.now, sleep=self.sleep, uniform=lambda: 0.5, **options
        )


class Script:
    """A service that returns a list of replies and then repeats the last one."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Handler]:
    """Handler of each host."""
    handlers: dict[str, Handler] = {}

    async def handle(request: httpx.Request) -> httpx.Response:
        return await handlers[request.url.host](request)

    monkeypatch.setattr(httpx, "AsyncHTTPTransport", lambda **_: httpx.MockTransport(handle))
    return handlers


def good() -> httpx.Response:
    return httpx.Response(200, content=dump(ACCEPTED))


def bad(status: int, code: str = "code", detail: str = "its words", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json={"error": code, "detail": detail}, headers=named)


def refused() -> httpx.ConnectError:
    return httpx.ConnectError("connection refused")


def judged(judge: RemoteJudge, submission: Submission = RIGHT) -> Judgement:
    return asyncio.run(judge.judge(submission))


def outcome(judge: RemoteJudge) -> Outcome:
    return judged(judge).outcome


def test_judge_from_several_event_loops() -> None:
    with RunningService(ServiceOptions(token=TOKEN)) as service:
        judge = RemoteJudge([service.url], TOKEN)
        for source, expected in (("right", Outcome.ACCEPTED), ("other", Outcome.WRONG), ("raise", Outcome.JUDGE_ERROR)):
            judgement = judged(judge, Submission("python", source, SUITE))
            assert (judgement.outcome, judgement.total) == (expected, 2)
            assert judgement.seconds > 0

        async def many() -> list[Judgement]:
            return list(await asyncio.gather(*(judge.judge(RIGHT) for _ in range(20))))

        assert [each.outcome for each in asyncio.run(many())] == [Outcome.ACCEPTED] * 20
        assert service.judge.seen[-1] == RIGHT
        without = judged(RemoteJudge([service.url]))
        assert without.outcome is Outcome.JUDGE_ERROR
        assert "set the token" in without.detail


def test_dead_service_is_judge_error_and_is_used_again_after_restart() -> None:
    policy = RetryPolicy(retries=2, first_delay_s=0.01)
    with service_process() as (process, url):
        judge = RemoteJudge([url], policy=policy, failures=2, cool_down_s=0.05)

        async def killed() -> Judgement:
            pending = asyncio.create_task(judge.judge(Submission("python", "wait", SUITE)))
            async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
                while (await client.get(f"{url}/health")).json()["running"] != 1:
                    await asyncio.sleep(0.01)
            process.kill()
            return await pending

        assert outcome(judge) is Outcome.ACCEPTED
        judgement = asyncio.run(killed())
        assert judgement.outcome is Outcome.JUDGE_ERROR
        assert url in judgement.detail
        assert "/health" in judgement.detail
        assert outcome(judge) is Outcome.JUDGE_ERROR
    with service_process(int(url.rpartition(":")[2])):
        assert outcome(judge) is Outcome.ACCEPTED


def test_test_suite_is_uploaded_once_per_service(hosts: dict[str, Handler], clock: Clock) -> None:
    stored: dict[str, TestSuite] = {}
    asked: Counter[str] = Counter()

    async def handle(request: httpx.Request) -> httpx.Response:
        asked[request.method] += 1
        await asyncio.sleep(0)
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        if request.method == "PUT":
            suite = parse(TestSuite, request.content)
            assert request.url.path == f"/v1/test-suites/{suite.digest}"
            stored[suite.digest] = suite
            return httpx.Response(200)
        digest = parse(JudgeRequest, request.content).test_suite_digest
        return good() if digest in stored else bad(404, "unknown_test_suite")

    async def many(judge: RemoteJudge, suite: TestSuite) -> None:
        everything = [judge.judge(Submission("cpp", str(each), suite)) for each in range(10)]
        assert [each.outcome for each in await asyncio.gather(*everything)] == [Outcome.ACCEPTED] * 10

    hosts["a"] = handle
    judge = clock.judge("http://a/")
    asyncio.run(many(judge, SUITE))
    assert asked["PUT"] == 1
    asyncio.run(many(judge, SUITE))
    assert asked["PUT"] == 1
    stored.clear()  # restarted
    asyncio.run(many(judge, SUITE))
    assert asked["PUT"] == 2
    # Changed by the JSON round trip, yet stored once, under its new digest.
    odd = TestSuite((IoTest("\ud800", "1"),), Limits(cpu_s=2))
    asyncio.run(many(judge, odd))
    asyncio.run(many(judge, odd))
    assert asked["PUT"] == 3


@pytest.mark.parametrize("trouble", [bad(422, "wrong_digest"), httpx.Response(200)])
def test_test_suite_is_inlined_if_upload_fails(
    hosts: dict[str, Handler], clock: Clock, trouble: httpx.Response
) -> None:
    async def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            return httpx.Response(trouble.status_code, content=trouble.content)
        return good() if parse(JudgeRequest, request.content).test_suite == SUITE else bad(404, "unknown_test_suite")

    hosts["a"] = handle
    assert outcome(clock.judge()) is Outcome.ACCEPTED


@pytest.mark.parametrize("answer", [refused(), httpx.ReadError("reset"), bad(500), bad(502), bad(503), bad(504)])
def test_retry_delays_double(hosts: dict[str, Handler], clock: Clock, answer: httpx.Response | Exception) -> None:
    hosts["a"] = Script(answer, answer, good())
    assert outcome(clock.judge()) is Outcome.ACCEPTED
    assert len(clock.slept) == 2
    assert clock.slept[0] < clock.slept[1] <= 2.0
    hosts["a"] = script = Script(answer)
    judgement = judged(clock.judge(failures=100))
    assert judgement.outcome is Outcome.JUDGE_ERROR
    assert len(script.requests) == 3
    assert judgement.total == 2
    assert judgement.detail.startswith("no judge service could judge it (http://a: ")
    assert TOKEN not in judgement.detail


def test_busy_service_is_retried(hosts: dict[str, Handler], clock: Clock) -> None:
    """Waits as long as the service asks; status 429 is not a failure."""
    hosts["a"] = Script(*[bad(429, Retry_After="7")] * 30, good())
    judge = clock.judge()
    assert outcome(judge) is Outcome.ACCEPTED
    assert len(clock.slept) == 30
    assert min(clock.slept) >= 7


def test_draining_service_is_skipped(hosts: dict[str, Handler], clock: Clock) -> None:
    hosts["a"] = Script(bad(503, "draining", Retry_After="30"))
    hosts["b"] = Script(good())
    assert outcome(clock.judge("http://a", "http://b")) is Outcome.ACCEPTED
    assert clock.slept == []
    assert outcome(clock.judge("http://a")) is Outcome.JUDGE_ERROR
    assert min(clock.slept) >= 30


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_permanent_errors_are_not_retried(hosts: dict[str, Handler], clock: Clock, status: int) -> None:
    hosts["a"] = script = Script(bad(status))
    judgement = judged(clock.judge())
    assert judgement.outcome is Outcome.JUDGE_ERROR
    assert f"HTTP {status}: its words" in judgement.detail
    assert TOKEN not in judgement.detail
    assert len(script.requests) == 1
    assert clock.slept == []


def test_invalid_reply_is_retried(hosts: dict[str, Handler], clock: Clock) -> None:
    hosts["a"] = Script(httpx.Response(200, content=b"<html>"))
    assert "is not a judgement" in judged(clock.judge()).detail
    hosts["a"] = Script(httpx.Response(502, content=b"<html>bad gateway"))
    assert "HTTP 502: <html>bad gateway" in judged(clock.judge()).detail


def test_circuit_opens_after_repeated_failures(hosts: dict[str, Handler], clock: Clock) -> None:
    hosts["a"] = broken = Script(refused())
    hosts["b"] = working = Script(good())
    judge = clock.judge("http://a", "http://b", failures=3, cool_down_s=10.0)
    assert [outcome(judge) for _ in range(10)] == [Outcome.ACCEPTED] * 10
    assert (len(broken.requests), len(working.requests)) == (3, 10)
    clock.now += 11
    assert [outcome(judge) for _ in range(3)] == [Outcome.ACCEPTED] * 3
    assert len(broken.requests) == 4  # one probe, and the circuit opened again
    broken.answers = [good()]
    clock.now += 11
    assert [outcome(judge) for _ in range(5)] == [Outcome.ACCEPTED] * 5
    assert (len(broken.requests), len(working.requests)) == (9, 13)


def test_one_submission_probes_an_open_circuit(hosts: dict[str, Handler], clock: Clock) -> None:
    hosts["a"] = Script(refused())
    judge = clock.judge(failures=1, cool_down_s=5.0)
    assert outcome(judge) is Outcome.JUDGE_ERROR
    clock.now += 6
    arrived: list[int] = []
    back = asyncio.Event()

    async def slow(request: httpx.Request) -> httpx.Response:
        arrived.append(1)
        await back.wait()
        return good()

    async def many() -> None:
        waiting = [asyncio.create_task(judge.judge(RIGHT)) for _ in range(5)]
        while not arrived:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(arrived) == 1
        back.set()
        assert Outcome.ACCEPTED in [each.outcome for each in await asyncio.gather(*waiting)]

    hosts["a"] = slow
    asyncio.run(many())
    assert outcome(judge) is Outcome.ACCEPTED


def test_load_is_balanced_over_services(hosts: dict[str, Handler], clock: Clock) -> None:
    busy: Counter[str] = Counter()
    go = asyncio.Event()

    async def handle(request: httpx.Request) -> httpx.Response:
        busy[request.url.host] += 1
        if sum(busy.values()) == 10:
            go.set()
        await go.wait()
        return good()

    async def many() -> None:
        judge = clock.judge("http://a", "http://b")
        await asyncio.gather(*(judge.judge(RIGHT) for _ in range(10)))

    hosts["a"] = hosts["b"] = handle
    asyncio.run(many())
    assert busy == {"a": 5, "b": 5}


async def never(request: httpx.Request) -> httpx.Response:
    await asyncio.Event().wait()
    raise AssertionError


def test_judgement_times_out(hosts: dict[str, Handler], clock: Clock) -> None:
    hosts["a"] = never
    judgement = judged(clock.judge(policy=RetryPolicy(total_s=0.01)))
    assert (judgement.outcome, judgement.detail) == (Outcome.JUDGE_ERROR, "no judgement in 0.01 s")


def test_close_ends_pending_submissions(hosts: dict[str, Handler], clock: Clock) -> None:
    async def main() -> list[Judgement]:
        judge = clock.judge()
        pending = [asyncio.create_task(judge.judge(RIGHT)) for _ in range(3)]
        await asyncio.sleep(0)
        await judge.close()
        assert all(task.done() for task in pending)
        await judge.close()
        return [*await asyncio.gather(*pending), await judge.judge(RIGHT)]

    hosts["a"] = never
    for judgement in asyncio.run(main()):
        assert judgement.outcome is Outcome.JUDGE_ERROR
        assert "closed" in judgement.detail


def test_cancelled_submission_leaves_no_state(hosts: dict[str, Handler], clock: Clock) -> None:
    judge = clock.judge()

    async def main() -> None:
        pending = asyncio.create_task(judge.judge(RIGHT))
        await asyncio.sleep(0.01)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending

    hosts["a"] = never
    asyncio.run(main())
    hosts["a"] = Script(good())
    assert outcome(judge) is Outcome.ACCEPTED


def test_internal_error_is_judge_error(hosts: dict[str, Handler], clock: Clock) -> None:
    hosts["a"] = Script(ZeroDivisionError("oh"))
    judgement = judged(clock.judge())
    assert (judgement.outcome, judgement.detail) == (Outcome.JUDGE_ERROR, "ZeroDivisionError: oh")


@pytest.mark.parametrize("urls", [[], ["judge:8000"], ["ftp://judge"], ["http://"], ["http://judge:port"]])
def test_invalid_urls_are_rejected(urls: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"http://host:port|at least one URL"):
        RemoteJudge(urls)


def test_token_must_fit_a_header() -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        RemoteJudge(["http://a"], json.dumps("two words"))
