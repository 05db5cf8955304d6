"""Downloads by scripted servers: cut anywhere, answered by another part, cancelled from another thread."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from dojang.rollout_service.download import Download, ErrorReply
from service_parts import PATIENCE

DATA = bytes(range(256)) * 40
WHOLE = f'HTTP/1.1 200 OK\r\nContent-Length: {len(DATA)}\r\nETag: "a"\r\n\r\n'.encode() + DATA


def part(start: int, first: int | None = None, total: int = len(DATA)) -> bytes:
    """The answer to a request for the rest, from a byte on."""
    shown = start if first is None else first
    size = len(DATA) - start
    head = f"HTTP/1.1 206 OK\r\nContent-Length: {size}\r\nContent-Range: bytes {shown}-{len(DATA) - 1}/{total}\r\n\r\n"
    return head.encode() + DATA[start:]


@contextmanager
def scripted(replies: Sequence[bytes]) -> Iterator[tuple[Download, list[str]]]:
    """A server that gives one reply per connection, and what it was asked."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for reply in replies:
                connection, _ = listener.accept()
                with connection:
                    asked.append(connection.recv(65536).decode())
                    connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        host, port = listener.getsockname()[:2]
        yield Download(f"http://{host}:{port}/weights/policy/1?merge=0", "secret", PATIENCE), asked
        thread.join(PATIENCE)


@pytest.mark.parametrize("cut", [0, 1, 20, 40, 60, 70, 100, 1000, len(WHOLE) - 1])
def test_a_cut_download_is_continued(cut: int) -> None:
    body = WHOLE.index(b"\r\n\r\n") + 4
    received = max(0, cut - body)
    with scripted([WHOLE[:cut], part(received) if received else WHOLE]) as (download, asked):
        with pytest.raises((OSError, http.client.HTTPException)):
            download.fetch()
        assert download.size == received
        assert download.fetch() == DATA
    assert "Bearer secret" in asked[0]
    assert ('If-Range: "a"' in asked[1] and f"Range: bytes={received}-" in asked[1]) == (received > 0)


@pytest.mark.parametrize("wrong", [part(500), part(900, 500), part(900, total=7)])
def test_another_part_is_not_taken(wrong: bytes) -> None:
    with scripted([WHOLE[: WHOLE.index(b"\r\n\r\n") + 904], wrong, WHOLE]) as (download, _):
        for _ in range(2):
            with pytest.raises(ConnectionError):
                download.fetch()
        assert download.fetch() == DATA


def test_an_error_reply_has_its_content() -> None:
    reply = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone"
    with scripted([reply]) as (download, _), pytest.raises(ErrorReply) as caught:
        download.fetch()
    assert (caught.value.status, caught.value.content) == (404, b"gone")


def test_a_download_is_cancelled_from_another_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        download = Download(f"http://127.0.0.1:{silent.getsockname()[1]}/x?", "secret", PATIENCE)
        failed: list[BaseException] = []

        def fetch() -> None:
            try:
                download.fetch()
            except (OSError, http.client.HTTPException) as error:
                failed.append(error)

        thread = threading.Thread(target=fetch)
        thread.start()
        started = time.monotonic()
        with silent.accept()[0]:
            time.sleep(0.2)
            download.cancel()
            thread.join(PATIENCE)
        assert failed
        assert time.monotonic() - started < PATIENCE / 2
