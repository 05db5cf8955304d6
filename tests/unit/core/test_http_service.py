"""Parts of HTTP services that the judge's and the rollout service's tests do not reach."""

import socket

import pytest

from dojang.core.errors import ConfigError
from dojang.core.http_service import address_of, open_listener


def test_a_listener_takes_a_free_port_and_has_an_address() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=rf"cannot listen on host=127\.0\.0\.1 port={port}: .*choose another"):
            open_listener("127.0.0.1", port)


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_ipv6_addresses_have_brackets() -> None:
    try:
        listener = open_listener("::1", 0)
    except ConfigError:
        pytest.skip("this machine has no IPv6 loopback")
    with listener:
        assert address_of(listener).startswith("http://[::1]:")
