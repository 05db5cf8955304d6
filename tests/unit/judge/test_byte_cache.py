"""LRU cache with a limit in bytes."""

from dojang.judge.byte_cache import ByteCache


def test_least_recently_used_values_are_evicted() -> None:
    cache = ByteCache[str, int](25)
    cache.put("a", 1, 10)
    cache.put("b", 2, 10)
    assert cache.get("a") == 1
    cache.put("c", 3, 10)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_the_newest_value_is_kept_even_if_it_exceeds_the_limit() -> None:
    cache = ByteCache[str, int](25)
    cache.put("a", 1, 10)
    cache.put("b", 2, 1000)
    assert (cache.get("a"), cache.get("b")) == (None, 2)
    cache.put("c", 3, 5)
    assert (cache.get("b"), cache.get("c")) == (None, 3)
