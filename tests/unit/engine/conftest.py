"""The engine's tests have pages of few tokens, so that short sequences have several."""

import pytest

from dojang.engine import attention, kv_cache, kv_cache_size, waiting

PAGE = 8


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> int:
    """Tokens of a page."""
    for module in (attention, kv_cache, kv_cache_size, waiting):
        monkeypatch.setattr(module, "PAGE_TOKENS", PAGE)
    return PAGE
