"""Messages between pool and worker: a JSON object and binary pieces, over a stream socket.

JSON instead of pickle: the worker runs hostile programs, and its messages must not execute code in the trainer.
"""

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MOST", "Closed", "receive", "send"]

_LENGTHS = struct.Struct("<II")
MOST = (1 << 30) + (1 << 26)
"""Maximum size of a message in bytes: the largest output plus its header. A larger size means a corrupt stream."""


class Closed(Exception):
    """The other side closed the connection."""


def send(channel: socket.socket, header: Mapping[str, Any], pieces: Sequence[bytes] = ()) -> None:
    text = json.dumps({**header, "pieces": [len(piece) for piece in pieces]}).encode()
    try:
        channel.sendall(b"".join((_LENGTHS.pack(len(text), sum(map(len, pieces))), text, *pieces)))
    except (BrokenPipeError, ConnectionError) as error:
        raise Closed(str(error)) from error


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Receive one message. Raises Closed at the end of the stream, TimeoutError if the socket has a timeout."""
    size, rest = _LENGTHS.unpack(_exactly(channel, _LENGTHS.size))
    if size + rest > MOST:
        raise Closed(f"a message of {size + rest} bytes exceeds {MOST}")
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
