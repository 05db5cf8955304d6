"""From a run's settings to the sampling of its rollouts and evaluations."""

import pytest

from dojang.build import assemble
from dojang.build.sampling import eval_sampling, train_sampling
from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError

CUTS = ("rollout.top_p=0.9", "rollout.top_k=20", "rollout.min_p=0.1")


def test_truncation_reaches_the_sampling_of_training_and_of_evaluations_apart() -> None:
    evaluated = ("eval.temperature=0.6", "eval.samples=4", "eval.top_p=0.95", "eval.top_k=50", "eval.min_p=0.02")
    config = recipes.load("quickstart", [*CUTS, *evaluated])
    assert [(each.top_p, each.top_k, each.min_p) for each in (train_sampling(config, 0), eval_sampling(config))] == [
        (0.9, 20, 0.1),
        (0.95, 50, 0.02),
    ]


@pytest.mark.parametrize("recipe", ["quickstart", "quickstart-code", "smollm2-gsm8k", "deepmath-qwen2.5-0.5b"])
def test_training_and_evaluations_stop_where_the_task_says(recipe: str) -> None:
    config = recipes.load(recipe)
    line = config.task.stop_line()
    assert line is not None
    stops = [(each.stop, each.stop_line) for each in (train_sampling(config, 0), eval_sampling(config))]
    assert stops == [(config.data.stop, line)] * 2
    never = recipes.load(recipe, ["task.stop_at=never"])
    assert [each.stop_line for each in (train_sampling(never, 0), eval_sampling(never))] == [None, None]
    assert train_sampling(config, 0, stops=False).stop_line is None


def test_an_environment_that_runs_code_blocks_ends_completions_there() -> None:
    config = recipes.load("quickstart", ["workflow.name=python_tool", "workflow.call_format=code_block"])
    for sampling in (train_sampling(config, 0), eval_sampling(config)):
        assert sampling.stop_line is not None
        assert sampling.stop_line.end("So\n```python\n1\n```\n") is not None
        assert sampling.stop_line.end("#### 7\n") is not None
    assert train_sampling(config, 0, stops=False).stop_line is None


@pytest.mark.parametrize("cut", CUTS)
def test_ratios_to_truncated_log_probs_are_refused(cut: str) -> None:
    with pytest.raises(ConfigError, match=f"{cut}.*algo.old_logprobs=trainer"):
        assemble.prepare(recipes.load("quickstart", [cut]), dry=True)
    assemble.prepare(recipes.load("quickstart", [cut, "algo.name=gspo"]), dry=True)
    assemble.prepare(
        recipes.load("quickstart", [cut, "algo.old_logprobs=trainer", "algo.corrections=[{name: token_tis}]"]), dry=True
    )


def test_corrections_of_whole_sequences_are_refused_with_truncation() -> None:
    more = ["algo.name=gspo", "algo.corrections=[{name: geometric}, {name: sequence_mis}]"]
    with pytest.raises(ConfigError, match=r"rollout.top_k=20 with algo.corrections geometric, sequence_mis"):
        assemble.prepare(recipes.load("quickstart", ["rollout.top_k=20", *more]), dry=True)


def test_an_algorithm_that_is_always_off_policy_says_so() -> None:
    with pytest.raises(
        ConfigError, match=r"algo.name=m2po computes its importance ratios with them; use another algo.name"
    ):
        assemble.prepare(recipes.load("quickstart", ["rollout.top_p=0.9", "algo.name=m2po"]), dry=True)


def test_a_reference_that_is_not_there_cannot_be_refreshed() -> None:
    with pytest.raises(ConfigError, match=r"train.ref_model_sync_steps=4 refreshes the reference model"):
        assemble.prepare(recipes.load("quickstart", ["train.ref_model_sync_steps=4"]), dry=True)
    assemble.prepare(recipes.load("quickstart", ["train.ref_model_sync_steps=4", "algo.kl_coef=0.1"]), dry=True)


@pytest.mark.parametrize("setting", ["top_p=0.9", "top_k=5", "min_p=0.1", "samples=2"])
def test_settings_without_effect_on_greedy_answers_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"eval.{setting}.*set eval.temperature above 0"):
        recipes.load("quickstart", [f"eval.{setting}"])
