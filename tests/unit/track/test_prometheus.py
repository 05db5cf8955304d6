"""The Prometheus exporter: served gauges, help texts, and the report of missed scrapes."""

import socket
import urllib.request
from collections.abc import Iterator

import pytest

from dojang.core.errors import ConfigError
from dojang.track.exporter import Row
from dojang.track.prometheus import PrometheusSink


@pytest.fixture
def sink() -> Iterator[PrometheusSink]:
    sink = PrometheusSink("127.0.0.1", 0, "quickstart-1", 40)
    yield sink
    sink.close()


def answer(sink: PrometheusSink) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=10) as found:
        return str(found.read().decode()).splitlines()


def ask(sink: PrometheusSink) -> list[str]:
    return [line for line in answer(sink) if not line.startswith("#")]


def test_newest_values_are_served(sink: PrometheusSink) -> None:
    assert ask(sink) == []
    sink.write_rows(
        [Row(1, {"critic/rewards/mean": 0.25, "perf/x": 1.0}, 5.0), Row(2, {"critic/rewards/mean": 0.5}, 6.0)]
    )
    sink.write_rows([Row(2, {"val/accuracy": 0.75}, 7.0)])
    assert ask(sink) == [
        'dojang_step{run="quickstart-1"} 2.0',
        'dojang_steps{run="quickstart-1"} 40.0',
        'dojang_step_time_seconds{run="quickstart-1"} 7.0',
        'dojang_critic_rewards_mean{metric="critic/rewards/mean",run="quickstart-1"} 0.5',
        'dojang_perf_x{metric="perf/x",run="quickstart-1"} 1.0',
        'dojang_val_accuracy{metric="val/accuracy",run="quickstart-1"} 0.75',
    ]


def test_equal_gauge_names_are_distinguished_by_label(sink: PrometheusSink) -> None:
    sink.write_rows([Row(1, {"val/test_score/a-b": 0.1, "val/test_score/a_b": 0.2}, 5.0)])
    assert ask(sink)[3:] == [
        'dojang_val_test_score_a_b{metric="val/test_score/a-b",run="quickstart-1"} 0.1',
        'dojang_val_test_score_a_b{metric="val/test_score/a_b",run="quickstart-1"} 0.2',
    ]


def test_help_texts_come_from_the_registry(sink: PrometheusSink) -> None:
    sink.write_rows([Row(1, {"timing_s/step": 1.0, "my/own": 2.0}, 5.0)])
    texts = [line for line in answer(sink) if line.startswith("# HELP")]
    assert "# HELP dojang_timing_s_step Duration of a step, without evaluation and saving. (s)" in texts
    assert "# HELP dojang_my_own my/own of metrics.jsonl." in texts


def test_steps_not_scraped_are_reported_at_the_end(sink: PrometheusSink) -> None:
    sink.write_rows([Row(3, {"x": 1.0}, 5.0)])
    ask(sink)
    assert sink.finish("finished") == ""
    sink.write_rows([Row(5, {"x": 2.0}, 6.0)])
    assert "the last 2 steps" in sink.finish("finished")


def test_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"track.prometheus.host=127.0.0.1, port={port}: Address already in use"):
            PrometheusSink("127.0.0.1", port, "run", 1)
