"""How connections to services are kept: one whose machine vanished is noticed after about a minute, not when the
patience of whoever waits for an answer ends."""

import socket

__all__ = ["KEEPALIVE"]

KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]
"""Options of a socket."""
