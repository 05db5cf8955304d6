"""Real runs write only registered metrics, and every registered metric is written by a run."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

import commands
from dojang.track.registry import find, metrics

TESTS = Path(__file__).resolve().parents[1]
SMALL = ["steps=2", "rollout.prompts_per_step=4", "rollout.group_size=4", "eval.every=2", "eval.problems=8"]
RUNS = {
    "grpo": [
        *("quickstart", *SMALL, "algo.kl_coef=0.01", "train.minibatches=2"),
        "algo.old_logprobs=trainer",
        "algo.corrections=[{name: token_tis}, {name: opsm}]",
        "eval.benchmarks={long: {data: {name: arithmetic, digits: 3}, problems: 4}}",
    ],
    "ppo": ["quickstart", *SMALL, "algo.name=ppo"],
    "m2po": ["quickstart", *SMALL, "algo.name=m2po", "train.minibatches=2"],
    "code": ["quickstart-code", *SMALL],
    "penalties": ["quickstart", *SMALL, "algo.kl_coef=0.01", "algo.kl_in_reward=0.01", "algo.entropy.coef=0.001"],
    "self-distillation": ["quickstart", *SMALL, "distillation={teacher: policy, hint: 'The answer is {reference}.'}"],
    "sft": ["quickstart-sft", "steps=2", "rollout.prompts_per_step=4", "eval.every=2", "eval.problems=8"],
    "stream": ["quickstart", *SMALL, "rollout.group_size=2", "loop.mode=stream", "algo.max_resample_rounds=1"],
    "turns": [
        *("quickstart", *SMALL, "workflow.name=custom", "workflow.make_with=second_try:SecondTry"),
        *("workflow.max_turns=2", "rollout.curriculum_keep=0.5"),
    ],
    "two": [str(TESTS / "resume" / "two_models.yaml"), "steps=2"],
}
ALL_AT_ONCE = """
import json, sys
from pathlib import Path
from dojang.runs import training
for name, (recipe, *overrides) in json.loads(sys.argv[1]).items():
    if name == "two":  # with a judge that praises what models so small write
        import two_models_command as play
        play.CodeTask.grade, play.CodeTask.trial = play.grade, play.trial
        play.coder_tester.parse_cases = play.parse_cases
    training.run(recipe, overrides, Path(sys.argv[2], name), resume=False)
"""
ELSEWHERE = {"weights/bytes", "weights/whole", "rollout_service/workers", "rollout_service/sent_bytes"}
"""Metrics of engines and rollout workers in separate processes; tests/vllm and tests/resume cover them."""
ELSEWHERE |= {"distillation/unaligned"}
"""Needs a teacher with another tokenizer, as in tests/unit/build/test_distiller.py."""
ELSEWHERE |= {"episodes/tool_errors/mean"}
"""Needs a model that calls tools; tests/unit/loop/test_metrics.py covers it."""
ON_A_GPU = {"perf/max_memory_allocated_gb", "perf/max_memory_reserved_gb"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Metric names that each run wrote."""
    folder = tmp_path_factory.mktemp("runs")
    paths = [str(TESTS / "resume"), *filter(None, [os.environ.get("PYTHONPATH")])]
    (folder / "all_at_once.py").write_text(ALL_AT_ONCE)
    command = [sys.executable, str(folder / "all_at_once.py"), json.dumps(RUNS), str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    result = commands.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return {
        name: {key for line in (folder / name / "metrics.jsonl").read_text().splitlines() for key in json.loads(line)}
        for name in RUNS
    }


@pytest.mark.parametrize("run", RUNS)
def test_runs_write_only_registered_metrics(written: dict[str, set[str]], run: str) -> None:
    assert len(written[run]) > 30
    assert [name for name in sorted(written[run] - {"step"}) if find(name) is None] == []


def test_every_registered_metric_is_written(written: dict[str, set[str]]) -> None:
    seen = {metric.name for names in written.values() for name in names if (metric := find(name)) is not None}
    assert {metric.name for metric in metrics()} - seen == ELSEWHERE | (
        set() if torch.cuda.is_available() else ON_A_GPU
    )
    assert any(name.startswith("tester/actor/") for name in written["two"])
