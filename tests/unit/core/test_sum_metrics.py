from dojang.core.sum_metrics import sum_metrics


def test_metrics_are_added_by_name_and_engines_without_any_count_nothing() -> None:
    assert sum_metrics([{"weights/bytes": 3.0, "a": 1.0}, None, {}, {"weights/bytes": 4.0}]) == {
        "weights/bytes": 7.0,
        "a": 1.0,
    }
    assert sum_metrics([]) == {}
