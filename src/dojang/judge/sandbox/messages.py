"""Messages between the pool and a worker: a JSON object and some binary pieces, over a stream socket.

JSON rather than pickle: a worker lives among hostile programs, and what it sends must not be able to run code here.
"""

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MOST", "Closed", "receive", "send"]

_LENGTHS = struct.Struct("<II")
MOST = (1 << 30) + (1 << 26)
"""Bytes in one message: the largest output there may be, and what goes with it. More is a sign that the two sides have
lost each other."""


class Closed(Exception):
    """The other side is gone."""


def send(channel: socket.socket, header: Mapping[str, Any], pieces: Sequence[bytes] = ()) -> None:
    """Send one message."""
    text = json.dumps({**header, "pieces": [len(piece) for piece in pieces]}).encode()
    try:
        channel.sendall(b"".join((_LENGTHS.pack(len(text), sum(map(len, pieces))), text, *pieces)))
    except (BrokenPipeError, ConnectionError) as error:
        raise Closed(str(error)) from error


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Wait for one message. Closed if there will be none; TimeoutError if the socket has a timeout."""
    size, rest = _LENGTHS.unpack(_exactly(channel, _LENGTHS.size))
    if size + rest > MOST:
        raise Closed(f"a message of {size + rest} bytes")
    header = json.loads(_exactly(channel, size))
    body = _exactly(channel, rest)
    pieces, start = [], 0
    for length in header.pop("pieces"):
        pieces.append(body[start : start + length])
        start += length
    return header, pieces


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            got = channel.recv_into(view)
        except ConnectionError as error:
            raise Closed(str(error)) from error
        if not got:
            raise Closed("end of stream")
        view = view[got:]
    return bytes(data)
