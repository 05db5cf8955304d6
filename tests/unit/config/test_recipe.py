"""From what a user typed to a configuration, or to a list of what is wrong with it."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from dojang.algos.grpo import GrpoConfig
from dojang.config import recipe as recipes
from dojang.config.key_docs import keys
from dojang.config.renamed_keys import RENAMED
from dojang.core.errors import ConfigError
from dojang.data.custom import CustomDataConfig
from dojang.data.gsm8k import Gsm8kConfig


def complaint(recipe: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        recipes.load(recipe, overrides)
    return str(caught.value)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("model: {name: dojang-tiny}\ndata: {name: arithmetic}\n")
    return path


@pytest.mark.parametrize("name", recipes.shipped())
def test_every_shipped_recipe_loads_and_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    config = recipes.load(name)
    saved = tmp_path / "config.yaml"
    saved.write_text(recipes.to_yaml(config))
    assert recipes.load(str(saved)) == config
    assert recipes.differences(config, recipes.load(str(saved))) == {}


@pytest.mark.parametrize("name", recipes.shipped())
def test_a_shipped_recipe_says_what_it_is_for(name: str) -> None:
    path = Path(recipes.__file__).parents[1] / "recipes" / f"{name}.yaml"
    assert path.read_text().startswith("# ")


def test_missing_required_keys_are_named(tmp_path: Path) -> None:
    assert complaint("quickstart", "data.name=custom") == (
        "1 mistake in the configuration of 'quickstart':\n  - data.load_with: must be given"
    )
    path = tmp_path / "empty.yaml"
    path.write_text("data: {digits: 3}\n")
    message = complaint(str(path))
    assert "\n  - model: must be given" in message
    assert "\n  - data.name: must be given" in message


def test_a_truth_value_is_no_number() -> None:
    message = complaint("quickstart", "steps=yes", "train.lr=true", "data.limit=on")
    for key in ("steps", "train.lr", "data.limit"):
        assert f"\n  - {key}: input should be a number, but it is true" in message


def test_an_empty_place_is_refused() -> None:
    assert "data.train: is empty; give a file" in complaint("quickstart", "data.name=files", "data.train=''")


def test_a_tilde_in_a_path_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    data = recipes.load("smollm2-gsm8k", ["data.path=~/gsm8k", "data.exemplars=~/shots.jsonl"]).data
    assert (data.path, data.exemplars) == (tmp_path / "gsm8k", tmp_path / "shots.jsonl")  # type: ignore[union-attr]


def test_a_run_directory_is_not_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    assert f"continue the run with `dojang resume {tmp_path}`" in complaint(str(tmp_path))


def test_a_key_of_the_default_choice_can_be_set_without_naming_it() -> None:
    config = recipes.load("quickstart", ["algo.kl_coef=0.05", "task.timeout_s=3"])
    assert (config.algo.name, config.task.name) == ("grpo", "answer_line")
    assert config.algo == GrpoConfig(kl_coef=0.05)


def test_a_yaml_file_is_loaded_as_a_recipe(recipe_file: Path) -> None:
    config = recipes.load(str(recipe_file), ["steps=3"])
    assert (config.model.name, config.data.name, config.steps) == ("dojang-tiny", "arithmetic", 3)


def test_a_configuration_is_frozen(recipe_file: Path) -> None:
    config = recipes.load(str(recipe_file))
    with pytest.raises(ValidationError, match="frozen"):
        config.steps = 5


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("train.lr=1e-6", "train.lr", 1e-6),
        ("train.lr=5.0e-4", "train.lr", 5e-4),
        ("train.lr=2", "train.lr", 2.0),
        ("train.betas=[0.8, 0.95]", "train.betas", (0.8, 0.95)),
        ("train.betas=[8e-1,0.95]", "train.betas", (0.8, 0.95)),
        ("algo.kl_coef=0.05", "algo.kl_coef", 0.05),
        ("algo.advantage=mean", "algo.advantage", "mean"),
        ("steps=7", "steps", 7),
        ("model.name=org/name", "model.name", "org/name"),
        ("task.rewards={correct: 2, format: 0.1}", "task.rewards", {"correct": 2.0, "format": 0.1}),
        ("rollout.temperature=.5", "rollout.temperature", 0.5),
    ],
)
def test_overrides_are_read_as_what_the_key_wants(override: str, path: str, value: object) -> None:
    found: object = recipes.load("quickstart", [override])
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


def test_the_last_override_wins() -> None:
    assert recipes.load("quickstart", ["steps=3", "steps=4"]).steps == 4


def test_a_union_is_switched_by_its_name() -> None:
    config = recipes.load("quickstart", ["data.name=gsm8k", "data.path=/somewhere", "data.shots=1"])
    assert isinstance(config.data, Gsm8kConfig)
    custom = recipes.load("quickstart", ["data.name=custom", "data.load_with=mine:load", "data.stop=[END]"])
    assert custom.data == CustomDataConfig(load_with="mine:load", stop=("END",))
    assert recipes.load("quickstart", ["algo.name=grpo", "algo.kl_coef=0.1"]).algo == GrpoConfig(kl_coef=0.1)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train.learning_rate=1", "train.learning_rate: no such key; known: lr, warmup_steps,"),
        ("train.warmpu=0.1", "train.warmpu: no such key; did you mean train.warmup_steps?"),
        ("rolout.samples=4", "rolout: no such key; did you mean rollout?"),
        ("algo.kl_coeff=0.1", "algo.kl_coeff: no such key; did you mean algo.kl_coef?"),
        ("data.digit=3", "data.digit: no such key; did you mean data.digits?"),
        ("lr=4", "lr: no such key; did you mean train.lr or tester.lr or train.critic.lr?"),
        ("rollout.minibatches=4", "rollout.minibatches: no such key; did you mean train.minibatches?"),
        ("samples=4", "samples: no such key; did you mean eval.samples or rollout.group_size?"),
        ("data.shots=4", "data.shots: no such key; it is a setting of data.name=gsm8k"),
        (
            "steps=many",
            "steps: input should be a valid integer, unable to parse string as an integer, but it is 'many'",
        ),
        ("steps=0", "steps: input should be greater than or equal to 1, but it is 0"),
        ("train.lr=nan", "train.lr: input should be a finite number, but it is"),
        ("train.lr=-1", "train.lr: input should be greater than 0, but it is -1"),
        ("algo.kl_estimator=k4", "algo.kl_estimator: input should be 'k1', 'k2', 'k3' or 'k3+', but it is 'k4'"),
        ("train.betas=[0.5]", "train.betas.1: must be given"),
        ("train.critic.lr=0", "train.critic.lr: input should be greater than 0, but it is 0"),
        (
            "algo={name: ppo, max_resample_rounds: 2}",
            "algo.max_resample_rounds: 2 is above 0, but ppo trains its critic on all groups",
        ),
        ("algo={name: ppo, advantage: rloo}", "algo.advantage: input should be 'reinforce++', but it is 'rloo'"),
        ("train.betas=[1, 0.5]", "train.betas.0: input should be less than 1, but it is 1"),
        (
            "data.name=gsm9k",
            "data.name: 'gsm9k' is not one of agent_tasks, arithmetic, episodes, files, functions, gsm8k, prepared, "
            "prompt_completion, reasoning_gym, tiny_programs, verifiers, custom; did you mean gsm8k?",
        ),
        (
            "data.name=[1]",
            "data.name: '[1]' is not one of agent_tasks, arithmetic, episodes, files, functions, gsm8k, prepared, "
            "prompt_completion, reasoning_gym, tiny_programs, verifiers, custom",
        ),
        ("seed=4294967296", "seed: input should be less than 4294967296"),
        ("task.rewards={}", "task.rewards: dictionary should have at least 1 item"),
        ("task.rewards={corect: 1}", "task.rewards: "),
        ("model=dojang-tiny", "model: "),
        ("data=arithmetic", "data: "),
        ("train=", "train: "),
    ],
)
def test_a_mistake_is_named_by_its_key(override: str, line: str) -> None:
    message = complaint("quickstart", override)
    assert message.startswith("1 mistake in the configuration of 'quickstart':\n")
    assert f"\n  - {line}" in message
    assert "\n" not in message.split("\n  - ", 1)[1]


def test_all_mistakes_are_reported_at_once() -> None:
    message = complaint("quickstart", "steps=0", "train.lrx=1", "algo.kl_coef=-1", "data.digits=x")
    assert message.startswith("4 mistakes in")
    for key in ("steps: ", "train.lrx: ", "algo.kl_coef: ", "data.digits: "):
        assert f"\n  - {key}" in message


def test_a_section_that_is_wrong_has_no_consequences() -> None:
    """The default in its place is not the user's: errors of workflow.name=single_turn would be false."""
    with pytest.raises(ConfigError) as error:
        recipes.load("quickstart", ["data={name: episodes}", "task={name: environment}", "workflow={name: openenv}"])
    (line,) = [line for line in str(error.value).splitlines() if line.startswith("  - ")]
    assert "set one of workflow.urls and workflow.app" in line


def test_weights_are_for_rewards_there_are() -> None:
    said = "algo.reward_weights has a weight for corect, but the parts of the task's reward are correct, format"
    assert said in complaint("quickstart", "algo.name=gdpo", "algo.reward_weights={corect: 2}")
    others = {
        "{name: code, rewards: {tags: {pattern: x}}}": "fraction, tags",
        "{name: maths}": "boxed, correct",
        "{name: keywords, required: [dose]}": "dose, own",
        "{name: keywords, required: [dose], reward_shape: all_or_nothing}": "accepted",
    }
    for task, parts in others.items():
        said = f"weight for corect, but the parts of the task's reward are {parts}; correct the name"
        assert said in complaint("quickstart", "algo.name=gdpo", "algo.reward_weights={corect: 2}", f"task={task}")
    said = (
        "reward_weights has overlong=2, a weight of the length penalty, but overlong_buffer_fraction=0 turns that off"
    )
    assert said in complaint("quickstart", "algo.name=gdpo", "algo.reward_weights={overlong: 2}")
    assert recipes.load(
        "quickstart", ["algo.name=gdpo", "algo.reward_weights={overlong: 2}", "algo.overlong_buffer_fraction=0.1"]
    )
    said = "has no effect with advantage=grpo, which uses the whole reward"
    assert said in complaint("quickstart", "algo.reward_weights={correct: 2}")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("loop.mode=sync", "loop.lag=2"), "lag=2 needs mode=overlap"),
        (("loop.lag=2", "algo.old_logprobs=trainer"), "or use loop.mode=sync"),
        (("loop.stale_updates=2",), "renamed to loop.lag"),
        (("train.optimizer=muon", "train.lora={}"), "optimizer=muon is for matrices trained in full"),
        (("train.muon_momentum=0.9",), "muon_momentum=0.9 has no effect with optimizer=adamw"),
        (("runtime=ray", "runtime.trainers=2", "train.optimizer=muon"), "optimizer=muon needs one process"),
        (("train.ref_model_mixup_alpha=0.1",), "has no effect without ref_model_sync_steps"),
        (("train.ref_model_sync_steps=4", "train.lora={}"), "needs a policy trained in full"),
        (
            ("model.head_dtype=float32", "rollout.engine=vllm"),
            "model.head_dtype=float32 is for rollout.engine.name=torch",
        ),
        (("model.head_dtype=float32", "model.dtype=float64"), "less precise than model.dtype=float64"),
        (
            ("loop.mode=overlap", "algo.name=gspo"),
            "set algo.old_logprobs=behaviour, or add algo.corrections=[{name: token_tis}]",
        ),
        (
            ("loop.mode=overlap", "loop.lag=2", "algo.old_logprobs=trainer"),
            "loop.mode=overlap trains on rollouts of older weights (loop.lag=2), but with algo.old_logprobs=tra",
        ),
        (
            ("loop.mode=overlap", "algo.old_logprobs=trainer", "algo.corrections=[{name: opsm}]"),
            "nothing corrects for the lag",
        ),
        (("algo.name=m2po", "algo.old_logprobs=trainer"), "algo.old_logprobs: "),
        (
            ("loop.mode=stream", "algo.clip_high=0.3"),
            "algo.name=m2po was chosen by loop.mode=stream, as none was given); write algo.name=grpo algo.clip_high=0",
        ),
        (("loop.mode=stream", "algo.old_logprobs=trainer"), "write algo.name=grpo algo.old_logprobs=trainer"),
        (
            ("loop.mode=stream", "algo.value_clip=0.1"),
            "setting of algo.name=ppo (algo.name=m2po was chosen by loop.mode=stream, as none was given)",
        ),
        (("algo.corrections=[{name: icepop}]",), "with old_logprobs=behaviour; set old_logprobs=trainer"),
        (
            ("algo.name=maxrl", "task={name: code}"),
            "rewards of 0 and more, but task.reward_shape=fraction gives -1 without a program; set",
        ),
        (
            ("algo.name=maxrl", "task.rewards={correct: 1, format: -0.5}"),
            "weight of format in the task's rewards is neg",
        ),
        (("algo.name=maxrl", "task={name: maths, boxed: -1}"), "the weight of boxed in the task's rewards is negative"),
    ],
)
def test_settings_that_disagree_are_refused(overrides: tuple[str, ...], said: str) -> None:
    assert said in complaint("quickstart", *overrides)


def test_one_sample_is_enough_where_no_group_is_compared() -> None:
    for algo in ("ppo", "reinforce++", "dapo, advantage: reinforce++-tokens, max_resample_rounds: 0"):
        assert recipes.load("quickstart", ["rollout.group_size=1", f"algo={{name: {algo}}}"]).rollout.group_size == 1
    for algo in ("grpo", "rloo", "reinforce++-baseline", "gdpo", "maxrl", "gspo"):
        said = "rollout.group_size=1 leaves nothing to compare a reward with, as algo.advantage="
        assert said in complaint("quickstart", "rollout.group_size=1", f"algo.name={algo}")


def test_corrections_for_stale_rollouts_may_include_opsm() -> None:
    corrections = "algo.corrections=[{name: opsm}, {name: token_tis}]"
    assert recipes.load("quickstart", ["loop.mode=overlap", "algo.old_logprobs=trainer", corrections])


def test_a_critic_leaves_something_to_the_policy() -> None:
    said = "train.critic.warmup_steps=40 leaves none of the run's 40 optimizer steps for the policy; lower it or raise"
    assert said in complaint("quickstart", "algo.name=ppo", "train.critic.warmup_steps=40")
    assert recipes.load("quickstart", ["algo.name=ppo", "train.critic.warmup_steps=39"]).train.critic.warmup_steps == 39


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["train.lora.base_bits=4", "model.dtype=float64"],
            "train.lora.base_bits=4 does not support model.dtype=float64",
        ),
        (
            ["train.offload=[reference]", "algo.kl_coef=0"],
            "train.offload has reference, but the run has no reference model",
        ),
        (
            ["train.offload=[reference]", "algo.kl_coef=0.1", "train.lora={}"],
            "train.offload has reference, but the run has no",
        ),
        (["train.critic.lr=1e-3"], "train.critic needs an algorithm with a critic (algo.name=ppo); grpo has none"),
    ],
)
def test_settings_without_effect_are_refused(overrides: list[str], said: str) -> None:
    assert said in complaint("quickstart", *overrides)


def test_programs_are_not_graded_by_an_answer_line() -> None:
    said = "data.name=functions asks for programs, which only running them can grade; set task.name=code"
    assert said in complaint("quickstart", "data.name=functions")
    assert recipes.load("quickstart", ["data.name=functions", "task={name: code}"]).task.name == "code"


def test_puzzles_are_graded_by_whoever_made_them() -> None:
    puzzles = ["data={name: reasoning_gym, generators: {maze: {}}}"]
    said = "data.name=reasoning_gym has puzzles that only it can grade; set task.name=reasoning_gym"
    assert said in complaint("quickstart", *puzzles)
    said = "task.name=reasoning_gym grades its own puzzles, not those of data.name=arithmetic"
    assert said in complaint("quickstart", "task.name=reasoning_gym")
    assert recipes.load("quickstart", [*puzzles, "task={name: reasoning_gym}"]).task.name == "reasoning_gym"


def test_all_conflicts_between_sections_are_named() -> None:
    message = complaint("quickstart", "eval.samples=5", "train.minibatches=17")
    assert message.startswith("2 mistakes in")
    assert "eval.samples=5 greedy answers would all be the same; set eval.temperature above 0" in message
    assert "train.minibatches=17 needs at least as many rollout.prompts_per_step (now 16)" in message


def test_a_curriculum_needs_groups() -> None:
    message = complaint("quickstart", "rollout.group_size=1", "rollout.curriculum_keep=0.1")
    assert "rollout.curriculum_keep=0.1 compares the rewards of a group, but rollout.group_size=1" in message


@pytest.mark.parametrize("override", ["steps", "=3", "train.=3", ".lr=3", "train..lr=3", ""])
def test_an_override_has_a_key_and_a_value(override: str) -> None:
    assert "must have the form key=value or section.key=value" in complaint("quickstart", override)


def test_keys_below_a_value_are_refused() -> None:
    assert "'steps' is a value, not a section" in complaint("quickstart", "steps.more=1")


def test_an_unknown_recipe_is_answered_with_the_known_ones() -> None:
    message = complaint("quikstart")
    assert "unknown recipe 'quikstart'. Did you mean quickstart?" in message
    assert all(name in message for name in recipes.shipped())
    assert "Did you mean" not in complaint("zzz")


def test_files_that_cannot_be_a_recipe(tmp_path: Path) -> None:
    assert "does not exist" in complaint(str(tmp_path / "missing.yaml"))
    for content, words in [
        (b"model: [", "is not valid YAML"),
        (b"- a\n- b\n", "must be a mapping of keys to values, not list"),
        (b"", "must be a mapping of keys to values, not NoneType"),
        (b"\xff\xfe\xfa", "cannot read"),
    ]:
        path = tmp_path / "bad.yaml"
        path.write_bytes(content)
        assert words in complaint(str(path))
    (tmp_path / "folder.yaml").mkdir()
    assert "cannot read" in complaint(str(tmp_path / "folder.yaml"))


def test_a_lag_that_is_the_default_is_no_difference() -> None:
    unset, one, two = (
        recipes.load("quickstart", ["loop.mode=stream", *more]) for more in ((), ("loop.lag=1",), ("loop.lag=2",))
    )
    assert recipes.differences(unset, one) == recipes.differences(one, unset) == {}
    assert recipes.differences(unset, two) == {"loop.lag": (None, 2)}
    sync = recipes.load("quickstart", ["algo.name=m2po", "loop.mode=sync"])
    assert recipes.differences(sync, one) == {"loop.mode": ("sync", "stream"), "loop.lag": (None, 1)}


def test_differences_name_both_values() -> None:
    old = recipes.load("quickstart")
    new = recipes.load("quickstart", ["steps=41", "algo.kl_coef=0.5", "data.name=custom", "data.load_with=mine:load"])
    assert recipes.differences(old, new) == {
        "steps": (40, 41),
        "algo.kl_coef": (0.0, 0.5),
        "data.name": ("arithmetic", "custom"),
        "data.operation": ("add", None),
        "data.digits": (2, None),
        "data.train_size": (4096, None),
        "data.test_size": (256, None),
        "data.load_with": (None, "mine:load"),
    }


def test_the_written_configuration_is_complete() -> None:
    tree = yaml.safe_load(recipes.to_yaml(recipes.load("quickstart")))
    assert tree["train"]["lr"] == 3e-4
    assert tree["train"]["betas"] == [0.9, 0.99]  # defaults are written too: they may change one day
    assert tree["health"]["patience_steps"] == 10


def test_a_remote_engine_needs_addresses() -> None:
    assert "rollout.engine.url: must be given" in complaint("quickstart", "rollout.engine=remote")
    assert "rollout.engine.url: list should have at least 1 item" in complaint(
        "quickstart", "rollout.engine=remote", "rollout.engine.url=[]"
    )


@pytest.mark.parametrize(
    ("setting", "engines"),
    [
        ("rollout.engine.url=[http://host:8000]", "remote"),
        ("rollout.engine.weights_dir=/weights", "remote"),
        ("rollout.engine.tensor_parallel_size=2", "vllm"),
    ],
)
def test_a_setting_of_another_engine_names_the_engines_that_have_it(setting: str, engines: str) -> None:
    key = setting.partition("=")[0]
    said = complaint("quickstart", "rollout.engine=torch", setting)
    assert f"{key}: no such key; it is a setting of rollout.engine.name={engines}" in said


@pytest.mark.parametrize("key", ["rollout.engine", "rollout.engine.name"])
def test_another_engine_keeps_only_the_settings_it_shares(key: str) -> None:
    post = recipes.load("codefu-7b-post", [f"{key}=torch", "rollout.engine.threads=3"])
    assert post.rollout.engine.model_dump(exclude_unset=True) == {"name": "torch", "threads": 3}
    gsm8k = recipes.load("smollm2-gsm8k", ["rollout.engine.weight_sync=delta", f"{key}=vllm"])
    assert gsm8k.rollout.engine.model_dump(exclude_unset=True) == {
        "name": "vllm",
        "max_num_seqs": 512,
        "weight_sync": "delta",
    }


def test_the_short_form_of_an_engine_in_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "short.yaml"
    file.write_text("model: {name: dojang-tiny}\ndata: {name: arithmetic}\nrollout: {engine: vllm}\n")
    engine = recipes.load(str(file), ["rollout.engine.kv_cache_gb=2"]).rollout.engine
    assert engine.model_dump(exclude_unset=True) == {"name": "vllm", "kv_cache_gb": 2}
    assert "rollout.engine.name: 'vlm' is not one of torch, vllm, remote; did you mean vllm?" in complaint(
        str(file), "rollout.engine=vlm"
    )


def test_conflicts_between_sections_are_reported_beside_wrong_values() -> None:
    with pytest.raises(ConfigError) as caught:
        recipes.load("quickstart", ["train.lr=fast", "eval.samples=3", "train.minibatches=99"])
    text = str(caught.value)
    assert text.startswith("3 mistakes")
    assert "train.lr" in text
    assert "set eval.temperature above 0" in text
    assert "lower train.minibatches or raise rollout.prompts_per_step" in text


def test_a_part_of_a_mapping_can_be_changed_alone() -> None:
    task = recipes.load("quickstart", ["task.rewards.correct=2"]).task
    assert task.rewards == {"format": 0.5, "correct": 2.0}


def test_an_empty_section_has_its_defaults(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model: {name: dojang-tiny}\ndata: {name: arithmetic}\ntrain:\n")
    assert recipes.load(str(recipe)).train == recipes.load(str(recipe), ["train.lr=1e-6"]).train


def test_a_key_given_twice_is_a_mistake(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model: {name: dojang-tiny}\ndata: {name: arithmetic}\nsteps: 1\nsteps: 2\n")
    with pytest.raises(ConfigError, match=r"the key 'steps' is given twice\n.*line 4, column 1"):
        recipes.load(str(recipe))
    recipe.write_text("model: {name: dojang-tiny}\ntrain:\n  lr: 1\n  betas: [0.1, 0.2]\n  lr: 2\n")
    with pytest.raises(ConfigError, match=r"the key 'lr' is given twice\n.*line 5, column 3"):
        recipes.load(str(recipe))


def test_sections_may_be_merged_from_an_anchor(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "model: {name: dojang-tiny}\ndata: {name: arithmetic}\n"
        "eval: &pace {every: 3}\ncheckpoint:\n  <<: *pace\n  every: 4\n"
    )
    config = recipes.load(str(recipe))
    assert (config.eval.every, config.checkpoint.every) == (3, 4)


def test_the_short_form_of_runtime_combines_with_its_keys_in_any_order(recipe_file: Path) -> None:
    for overrides in (["runtime=ray", "runtime.trainers=3"], ["runtime.trainers=3", "runtime=ray"]):
        assert recipes.load(str(recipe_file), overrides).runtime.model_dump()["trainers"] == 3
    recipe_file.write_text(recipe_file.read_text() + "runtime: ray\n")
    assert recipes.load(str(recipe_file), ["runtime.trainers=3"]).runtime.model_dump()["trainers"] == 3
    assert recipes.load(str(recipe_file), ["runtime.trainers=3", "runtime=local"]).runtime.name == "local"
    assert recipes.load(str(recipe_file), ["runtime={name: ray, engines: 2}"]).runtime.model_dump()["engines"] == 2
    assert "'ry' is not one of local, ray" in complaint(str(recipe_file), "runtime=ry")


def test_addresses_and_gpu_fractions_that_ray_rejects_are_refused(recipe_file: Path) -> None:
    assert "give the head's HOST:PORT" in complaint(str(recipe_file), "runtime=ray", "runtime.address=ray://a:10001")
    assert "1.5 GPUs are not possible" in complaint(str(recipe_file), "runtime=ray", "runtime.gpus=1.5")


def test_an_old_key_names_its_new_one() -> None:
    said = complaint("quickstart", "rollout.samples=4", "train.lora.bits=4", "train.critic.warmup=1", "rollout.slots=2")
    for old, new in (
        ("rollout.samples", "rollout.group_size"),
        ("train.lora.bits", "train.lora.base_bits"),
        ("train.critic.warmup", "train.critic.warmup_steps"),
        ("rollout.slots", "rollout.engine.max_num_seqs"),
    ):
        assert f"{old}: renamed to {new}" in said


def test_new_keys_exist() -> None:
    known = {key.name for key in keys()}
    assert [new for new in RENAMED.values() if new not in known] == []
    assert [old for old in RENAMED if old in known] == []


@pytest.mark.parametrize(
    ("overrides", "publish"),
    [
        ([], "merged"),
        (["runtime=ray"], "factors"),
        (["loop.mode=stream", "loop.workers=1"], "factors"),
        (["runtime=ray", "train.lora.publish=merged"], "merged"),
        (["runtime=ray", "train.lora.modules_to_save=[lm_head]"], "merged"),
    ],
)
def test_lora_factors_alone_go_to_other_processes(overrides: list[str], publish: str) -> None:
    config = recipes.load("quickstart", ["train.lora.rank=2", *overrides])
    assert config.train.lora is not None
    assert config.train.lora.publish == publish
    assert recipes.resolve("again", recipes.to_tree(config)).train == config.train


@pytest.mark.parametrize(
    ("overrides", "mode"),
    [
        ((), "overlap"),
        (("loop.lag=0",), "overlap"),
        (("algo.name=gspo",), "sync"),  # it recomputes old log-probs
        (("algo.old_logprobs=trainer",), "sync"),
        (("algo.old_logprobs=trainer", "algo.corrections=[{name: opsm}]"), "sync"),
        (("algo.old_logprobs=trainer", "algo.corrections=[{name: token_tis}]"), "overlap"),
        (("algo.name=m2po",), "overlap"),
        (("loop.mode=sync",), "sync"),
    ],
)
def test_rollouts_overlap_with_updates_where_the_loss_corrects_for_the_lag(
    overrides: tuple[str, ...], mode: str
) -> None:
    config = recipes.load("quickstart", overrides)
    assert config.loop.mode == mode
    assert config.loop.kept_versions == config.loop.staleness + 1
    assert ("mode" in config.loop.model_fields_set) == ("loop.mode=sync" in overrides)


def test_supervised_fine_tuning_has_no_rollouts_to_overlap() -> None:
    assert recipes.load("quickstart-sft", ()).loop.mode == "sync"
    for override in ("loop.mode=overlap", "loop.lag=0"):
        with pytest.raises(ConfigError, match=r"loop\.mode and loop\.lag are for rollouts.*leave them out"):
            recipes.load("quickstart-sft", (override,))


def test_a_text_in_place_of_a_list_is_refused_with_the_list() -> None:
    with pytest.raises(
        ConfigError, match=r"data\.stop: input should be a list, such as 'data\.stop=\[\"Human:\"\]', but"
    ):
        recipes.load("quickstart", ("data.stop='Human:'",))
