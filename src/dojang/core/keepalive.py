"""TCP keepalive options: notice a vanished peer after about a minute, not at the caller's timeout."""

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
"""Socket options (level, name, value)."""
