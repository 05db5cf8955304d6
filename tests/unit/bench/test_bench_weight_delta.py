"""The benchmark of weight packs delivers what was published; it checks that itself."""

import pytest

import weight_delta


def test_deltas_are_smaller_than_full_weights() -> None:
    full, deltas, changed = weight_delta.measure("dojang-tiny", 1e-6, 1)
    assert 0 < changed < 0.02
    rows = weight_delta.rows("tiny", "delta", full, deltas, "")
    assert rows[0].ratio is not None
    assert rows[0].ratio > 20
    assert rows[0].ratio == pytest.approx(full[0].size / deltas[0].size)


def test_factors_are_smaller_than_full_weights() -> None:
    full, alone = weight_delta.measure_factors("dojang-tiny")
    assert alone.size < full.size
