"""The rollout service over real connections: tokens, digests, damaged, late and repeated deliveries, cut downloads."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from dojang.core.errors import ClusterError, ConfigError
from dojang.loop.group_codec import encode
from dojang.rollout_service.client import NotJoined, VersionGone
from dojang.weight_sync import pack
from service_parts import (
    JOIN,
    PATIENCE,
    caller,
    client_of,
    delivery,
    group_of,
    joined,
    play,
    queue_of,
    run_of,
    served,
    store_of,
    tensors,
)

ROUTES = [
    ("GET", "/run"),
    ("POST", "/join"),
    ("POST", "/lease"),
    ("POST", "/heartbeat"),
    ("POST", "/deliver"),
    ("GET", "/weights/policy/0?merge=0"),
    ("POST", "/leave"),
]


def test_every_route_needs_the_token() -> None:
    async def test() -> None:
        queue = queue_of()
        async with served(run_of(), queue) as (url, service):
            for token in ("wrong", "secre", "secret2", "sécret", "x y"):
                headers = {"Authorization": f"Bearer {token}".encode()}
                async with caller(url) as http:
                    for method, path in ROUTES:
                        reply = await http.request(method, path, json={}, headers=headers)
                        assert (reply.status_code, reply.json()["error"]) == (401, "unauthorized"), path
            async with client_of(url, "wrong") as client:
                with pytest.raises(ConfigError, match="DOJANG_ROLLOUT_TOKEN"):
                    await client.describe()
            assert service.workers == []
            assert queue.ledger.counts()["drawn"] == 0

    play(test())


@pytest.mark.parametrize(
    ("changed", "code", "said"),
    [
        ({"dojang": "0.9"}, "wrong_version", "install 1.0"),
        ({"run": "other"}, "wrong_run", "other settings or models"),
        ({"data": "other"}, "wrong_data", "other training problems"),
    ],
)
def test_a_worker_that_does_not_fit_the_run_may_not_join(changed: dict[str, str], code: str, said: str) -> None:
    async def test() -> None:
        async with served(run_of(), queue_of()) as (url, service), client_of(url) as client, caller(url) as http:
            message = JOIN.model_copy(update=changed)
            reply = await http.post("/join", content=message.model_dump_json())
            assert (reply.status_code, reply.json()["error"]) == (409, code)
            with pytest.raises(ConfigError, match=said):
                await client.join(message)
            assert service.workers == []

    play(test())


def test_messages_are_strict_and_limited() -> None:
    async def test() -> None:
        async with served(run_of(message_mb=0.01), queue_of()) as (url, _), caller(url) as http:
            join = JOIN.model_dump()
            for wrong in (b"", b"{", b"[]", json.dumps({**join, "more": 1}), json.dumps({**join, "name": 7})):
                reply = await http.post("/join", content=wrong)
                assert (reply.status_code, reply.json()["error"]) == (422, "invalid"), wrong
            reply = await http.post("/join", content=b" " * 20_000)
            assert (reply.status_code, reply.json()["error"]) == (413, "too_large")
            assert (await http.post("/deliver", content=b"")).status_code == 422
            assert (await http.get("/nothing")).status_code == 404

    play(test())


def test_a_worker_that_has_not_joined_is_told_to() -> None:
    async def test() -> None:
        async with served(run_of(), queue_of()) as (url, _), client_of(url) as client:
            with pytest.raises(NotJoined):
                await client.lease("unknown-1")
            with pytest.raises(NotJoined):
                await client.heartbeat("unknown-1", [], 0)
            await client.leave("unknown-1")

    play(test())


def test_damaged_and_foreign_groups_are_refused_and_the_right_one_is_taken_once() -> None:
    async def test() -> None:
        queue = queue_of()
        run = run_of(group_mb=0.01)
        async with served(run, queue) as (url, _), client_of(url) as client, caller(url) as http:
            worker = (await client.join(JOIN)).worker
            lease, ended = await client.lease(worker)
            assert (lease is not None and lease.prompt_index, ended) == (0, False)
            assert lease is not None
            good = encode(group_of(0, 0, 0))
            flipped = bytes([*good[:-1], good[-1] ^ 1])
            digest = str(delivery(worker, 0, good)["params"]["digest"])
            for body, changed, expected in (
                (flipped, {"digest": digest}, (400, "damaged")),
                (good[:-3], {"digest": digest}, (400, "damaged")),
                (good[:-3], {}, (422, "invalid")),
                (b"\x80\x04N.", {}, (422, "invalid")),
                (good, {"prompt_index": "1"}, (422, "invalid")),
                (good, {"prompt_index": "-1"}, (422, "invalid")),
                (good, {"attempt": "one"}, (422, "invalid")),
                (encode(group_of(1, 0)).replace(b"sums/1", b"sums/7"), {"prompt_index": "1"}, (422, "invalid")),
                (bytes(20_000), {}, (413, "too_large")),
            ):
                reply = await http.post("/deliver", **delivery(worker, 0, body, **changed))
                assert (reply.status_code, reply.json()["error"]) == expected
            assert queue.ledger.counts()["ready"] == 0
            assert await client.deliver(worker, lease, good) == "taken"
            assert await client.deliver(worker, lease, good) == "known"
            assert queue.ledger.counts()["ready"] == 1

    play(test())


def test_a_connection_cut_within_a_delivery_takes_nothing() -> None:
    async def test() -> None:
        queue = queue_of()
        async with served(run_of(), queue) as (url, _), client_of(url) as client:
            worker = (await client.join(JOIN)).worker
            lease, _ = await client.lease(worker)
            assert lease is not None
            body = encode(group_of(0, 0))
            address = httpx.URL(url)
            _, writer = await asyncio.open_connection(address.host, address.port)
            query = httpx.QueryParams(delivery(worker, 0, body)["params"])
            head = f"POST /deliver?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-1])
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            await asyncio.sleep(0.1)
            assert queue.ledger.counts()["ready"] == 0
            assert await client.deliver(worker, lease, body) == "taken"

    play(test())


def test_an_expired_lease_goes_to_another_worker_and_the_first_delivery_wins() -> None:
    async def test() -> None:
        queue = queue_of(1, 0, lease_s=0.3)
        async with joined(run_of(timeout_s=4 * PATIENCE), queue) as (client, first):
            second = await client.join(JOIN)
            lost, _ = await client.lease(first.worker)
            again, _ = await client.lease(second.worker)
            assert lost is not None
            assert again is not None
            assert (lost.prompt_index, lost.attempt) == (0, 0)
            assert (again.prompt_index, again.attempt) == (0, 1)
            data = encode(group_of(0, 0))
            assert await client.deliver(first.worker, lost, data) == "taken"
            assert await client.deliver(second.worker, again, data) == "known"

    play(test())


def test_heartbeats_keep_only_the_prompts_they_name() -> None:
    async def test() -> None:
        queue = queue_of(2, 0, lease_s=0.3)
        async with joined(run_of(timeout_s=0.2), queue) as (client, worker):
            for _ in range(2):
                assert (await client.lease(worker.worker))[0] is not None
            for _ in range(10):
                await client.heartbeat(worker.worker, [1], 0)  # each waits for 0.05 s
            other = await client.join(JOIN)
            lease, _ = await client.lease(other.worker)
            assert lease is not None
            assert (lease.prompt_index, lease.attempt) == (0, 1)

    play(test())


def test_tokens_of_a_version_that_is_not_published_are_late() -> None:
    async def test() -> None:
        queue = queue_of()
        async with joined(run_of(), queue) as (client, worker):
            lease, _ = await client.lease(worker.worker)
            assert lease is not None
            assert await client.deliver(worker.worker, lease, encode(group_of(0, 0, 1))) == "late"
            again, _ = await client.lease(worker.worker)
            assert again is not None
            assert (again.prompt_index, again.attempt) == (0, 1)

    play(test())


def test_a_heartbeat_waits_for_a_new_version_and_tells_the_end() -> None:
    async def test() -> None:
        queue = queue_of(1, 1)
        async with joined(run_of(timeout_s=4 * PATIENCE), queue) as (client, worker):
            lease, _ = await client.lease(worker.worker)
            assert lease is not None
            await client.deliver(worker.worker, lease, encode(group_of(0, 0)))
            beating = asyncio.create_task(client.heartbeat(worker.worker, [], 0))
            await asyncio.sleep(0.1)
            assert not beating.done()
            await queue.next_batch()
            queue.publish(1)
            assert ((await beating).version, (await beating).ended) == (1, False)
            beating = asyncio.create_task(client.heartbeat(worker.worker, [], 1))
            leasing = [asyncio.create_task(client.lease(worker.worker)) for _ in range(3)]
            await asyncio.sleep(0.1)
            queue.close()
            assert (await beating).ended
            assert (await leasing[-1])[1]

    play(test())


def test_leaving_returns_prompts_at_once() -> None:
    async def test() -> None:
        queue = queue_of(1, 0)
        run = run_of()
        async with served(run, queue) as (url, service), client_of(url) as client:
            first, second = await client.join(JOIN), await client.join(JOIN)
            await client.lease(first.worker)
            assert service.workers == ["here:1", "here:1"]
            await client.leave(first.worker)
            lease, _ = await client.lease(second.worker)
            assert lease is not None
            assert (lease.prompt_index, lease.attempt) == (0, 1)
            assert service.workers == ["here:1"]

    play(test())


def test_a_killed_worker_leaves_after_its_timeout(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dojang.rollout_service.server._MOST_SILENT", 2)

    async def test() -> None:
        async with served(run_of(), queue_of(1, 0)) as (url, service), client_of(url) as client:
            for number in range(4):
                killed = await client.join(JOIN.model_copy(update={"name": f"killed:{number}"}))
            for member in service._members.values():
                member.heard -= PATIENCE + 1
            alive = await client.join(JOIN)
            await client.heartbeat(alive.worker, [], -1)  # a request of another worker is enough to notice it
            assert list(service._members) == [alive.worker]
            assert service.workers == ["here:1"]
            assert [each.name for each in service._silent.values()] == ["killed:2", "killed:3"]
            await client.leave(killed.worker)
            service.lost("killed:2")
            assert not service._silent

    play(test())
    assert "rollout worker killed:0 has given no sign of life for 20 s" in caplog.text


def test_a_worker_that_was_cut_off_too_long_may_still_deliver() -> None:
    async def test() -> None:
        async with served(run_of(), queue_of(1, 0)) as (url, service), client_of(url) as client:
            worker = (await client.join(JOIN)).worker
            lease, _ = await client.lease(worker)
            assert lease is not None
            service._members[worker].heard -= PATIENCE + 1
            assert service.workers == []
            assert await client.deliver(worker, lease, encode(group_of(0, 0))) == "taken"
            assert service.workers == ["here:1"]

    play(test())


def test_the_run_fails_when_worker_after_worker_does() -> None:
    async def test() -> None:
        queue = queue_of()
        async with joined(run_of(), queue) as (client, worker):
            for number in range(7):
                name = JOIN.model_copy(update={"name": f"there:{number}"})
                other = await client.join(name)
                if number == 2:  # a group between: they work in principle
                    lease, _ = await client.lease(worker.worker)
                    assert lease is not None
                    await client.deliver(worker.worker, lease, encode(group_of(0, 0)))
                await client.leave(other.worker, f"KeyError: {number}")
            with pytest.raises(ClusterError, match=r"5 rollout workers failed .*there:6: KeyError: 6"):
                await queue.next_batch()

    play(test())


def test_workers_killed_at_work_do_not_end_the_run() -> None:
    async def test() -> None:
        queue = queue_of(4, 1)
        async with served(run_of(), queue) as (url, service), client_of(url) as client:
            for number in range(6):
                worker = (await client.join(JOIN.model_copy(update={"name": f"there:{number}"}))).worker
                lease, _ = await client.lease(worker)
                assert lease is not None
                await client.deliver(worker, lease, encode(group_of(lease.prompt_index, 0)))
            for number in range(6):  # all at once, without a group between
                service.lost(f"there:{number}")
                service.failed(f"there:{number}", "signal SIGKILL", killed=True)
            assert len(await queue.next_batch()) == 4

    play(test())


@asynccontextmanager
async def cut_link(url: str, sizes: list[int]) -> AsyncIterator[tuple[str, list[int]]]:
    """A link that is cut after a number of bytes, of each connection; and the sizes of what it carried."""
    target, carried = httpx.URL(url), list[int]()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(target.host, target.port)
        left = sizes.pop(0) if sizes else 2**60

        async def send() -> None:
            while data := await reader.read(4096):
                outer.write(data)

        sending = asyncio.create_task(send())
        while left > 0 and (data := await inner.read(min(left, 4096))):
            left -= len(data)
            carried.append(len(data))
            writer.write(data)
            await writer.drain()
        sending.cancel()
        for each in (outer, writer):
            each.transport.abort()

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", carried


def test_a_cut_download_of_weights_goes_on_where_it_ended() -> None:
    async def test() -> None:
        store = store_of(0, 1, deltas=0)
        whole = pack.encode(store.pack(1))
        cuts = [100, 30_000, 50_000, 1]
        async with (
            served(run_of(weights={"policy": store}), queue_of()) as (url, service),
            cut_link(url, cuts) as (link, carried),
            client_of(link) as client,
        ):
            data = await client.weights("policy", 1, None, False)
            assert bytes(data) == whole
            assert pack.decode(data).version == 1
            assert service.sent_bytes >= len(whole)
            assert sum(carried) < len(whole) + 2500, "a part came twice"

    play(test())


def test_ranges_of_another_pack_are_not_continued() -> None:
    async def test() -> None:
        store = store_of(0, 1)
        async with served(run_of(weights={"policy": store}), queue_of()) as (url, _), caller(url) as http:
            whole = await http.get("/weights/policy/1?merge=0")
            tag, size = whole.headers["etag"], len(whole.content)
            assert whole.content == pack.encode(store.pack(1))
            for headers, status in (
                ({"Range": "bytes=1000-", "If-Range": tag}, 206),
                ({"Range": "bytes=1000-", "If-Range": '"other"'}, 200),
                ({"Range": "bytes=1000-"}, 200),
                ({"Range": f"bytes={size}-", "If-Range": tag}, 200),
                ({"Range": "bytes=-1", "If-Range": tag}, 200),
            ):
                reply = await http.get("/weights/policy/1?merge=0", headers=headers)
                start = 1000 if status == 206 else 0
                assert (reply.status_code, reply.content) == (status, whole.content[start:])
            assert (await http.get("/weights/tester/1?merge=0")).json()["error"] == "unknown_policy"
            assert (await http.get("/weights/policy/7?merge=0")).json()["error"] == "unknown_weights"
            assert (await http.get("/weights/policy/1?merge=0&base=x")).status_code == 422

    play(test())


def test_a_delta_is_sent_where_the_base_is_known() -> None:
    async def test() -> None:
        store = store_of(0, 1, 2)
        async with joined(run_of(weights={"policy": store}), queue_of()) as (client, _):
            found = pack.decode(await client.weights("policy", 2, 0, False))
            assert (found.kind, found.base, found.version) == ("delta", 0, 2)
            assert pack.decode(await client.weights("policy", 2, 77, False)).kind == "full"
            for version in (3, 4, 5, 6):
                store.publish(version, tensors(version))
            with pytest.raises(VersionGone):
                await client.weights("policy", 1, None, False)

    play(test())


def test_a_run_that_does_not_answer_is_given_up_in_time() -> None:
    async def test() -> None:
        async with client_of("http://127.0.0.1:1", timeout_s=0.3) as client:
            with pytest.raises(ClusterError, match=r"did not answer for 0\.3 s"):
                await client.describe()

    play(test())
