"""Reachability of the Hugging Face hub: its client retries for a minute before it gives up, this for seconds."""

import threading
import time
from functools import cache

__all__ = ["PROBE_S", "why_unreachable"]

PROBE_S = 5.0
"""Seconds to wait for an answer of the hub, including name resolution."""
_VALID_S = 60
"""Seconds for which an answer is remembered."""


def why_unreachable() -> str:
    """Returns why the hub cannot be used: offline mode, or no answer to a request. Empty: it can be used."""
    from huggingface_hub import constants  # takes a while to load

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    return _probe(constants.ENDPOINT, int(time.monotonic() // _VALID_S))


@cache
def _probe(endpoint: str, _period: int) -> str:
    found = [f"{endpoint} did not answer within {PROBE_S:g} s"]
    # In a thread: the request's timeout does not cover the resolution of its host name.
    thread = threading.Thread(target=lambda: found.insert(0, _ask(endpoint)), name="hub-probe", daemon=True)
    thread.start()
    thread.join(PROBE_S)
    return found[0]


def _ask(endpoint: str) -> str:
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=PROBE_S)
    except Exception as error:  # the client raises many kinds
        return f"{endpoint} cannot be reached: {error}"
    return ""
