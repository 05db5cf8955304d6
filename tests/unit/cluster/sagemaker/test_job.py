"""A job as it was typed: found right, or all that is wrong with it."""

from pathlib import Path
from typing import Any

import pytest

from dojang.cluster.sagemaker.job import Job, plan
from dojang.cluster.sagemaker.options import InstanceGroup, Options
from dojang.core.errors import ConfigError

ROLE = "arn:aws:iam::123456789012:role/Trainer"


def launch(*overrides: str, recipe: str = "quickstart", here: dict[str, str] | None = None, **more: Any) -> Job:
    given = {"role": ROLE, "instance_type": "ml.p4de.24xlarge", **more}
    return plan(recipe, overrides, Options(**given), local=here or {})


def test_one_type_of_instances() -> None:
    job = launch("steps=3", instance_count=2)
    assert job.groups == (InstanceGroup("", "ml.p4de.24xlarge", 2),)
    assert job.name == "dojang-quickstart"
    assert job.account == "123456789012"
    assert job.config.steps == 3
    assert job.command == (
        "exec python3 -m dojang launch ray-cluster -- python3 -m dojang launch entry-point "
        "runtime.name=ray runtime.trainers=8 runtime.engines=8"
    )


def test_a_run_is_made_to_use_the_cluster_unless_it_would_anyway(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model: {name: dojang-tiny}\ndata: {name: arithmetic}\nruntime: ray\n")
    assert launch(recipe=str(recipe), instance_type="ml.c7i.4xlarge").command.endswith("launch entry-point")
    job = launch("runtime.trainers=2", "runtime.engines=3")
    assert job.command.endswith("launch entry-point runtime.name=ray")
    assert job.config.runtime.model_dump()["trainers"] == 2


def test_groups_have_a_head_and_the_first_is_it_unless_another_is_named() -> None:
    two = {"instance_type": "", "groups": ["trainers=ml.p4de.24xlarge:2", "judges=ml.c7i.24xlarge:4"]}
    job = launch(**two)
    assert job.groups[1] == InstanceGroup("judges", "ml.c7i.24xlarge", 4)
    assert "ray-cluster --head-group trainers --" in job.command
    assert "--head-group judges --wait-shutdown 60 --" in launch(**two, head_group="judges", wait_shutdown=60).command


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        launch(
            "stps=3",
            "train.lr=much",
            role="Trainer",
            instance_type="p4de.24",
            checkpoints="bucket/run",
            inputs=["data=/nosuch", "model=s3:/bucket", "sm_drivers=s3://bucket/x", "nonsense"],
            environment=["1X=2", "NOSUCH"],
            max_hours=0,
            keep_alive=10,
            spot=True,
            subnets=["subnet-1"],
            security_groups=[],
            source=Path("/nosuch"),
        )
    said = str(caught.value)
    assert said.startswith("nothing was uploaded; ")
    for each in (
        "stps: no such key; did you mean steps?",
        "train.lr",
        "--role Trainer must look like arn:aws:iam::",
        "'ml.p4de.24' is not an instance type",
        "--checkpoints bucket/run must look like s3://",
        "--input data=/nosuch: not a file or folder here",
        "--input model=s3:/bucket: not a file or folder here",
        "--input sm_drivers: use another name",
        "--input nonsense must look like NAME=VALUE",
        "--env 1X is not a variable's name",
        "--env NOSUCH: it is not set here",
        "--max-hours 0",
        "--keep-alive does not work with --spot",
        "--subnet and --security-group go together",
        "--source /nosuch is not a folder",
    ):
        assert each in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"instance_type": ""}, "give --instance-type"),
        ({"groups": ["a=ml.c7i.large:1"]}, "exclude each other"),
        ({"instance_type": "", "groups": ["a=ml.c7i.large"]}, "NAME=TYPE:COUNT"),
        ({"instance_type": "", "groups": ["a=ml.c7i.large:0"]}, "NAME=TYPE:COUNT"),
        ({"instance_type": "", "groups": ["a=ml.c7i.large:1", "a=ml.c7i.large:1"]}, "names must differ"),
        ({"head_group": "judges"}, "--head-group judges is not one of the groups"),
        ({"spot": True}, "--spot needs --checkpoints"),
        ({"spot": True, "checkpoints": "s3://bucket/x", "max_wait": 2}, "must be at least --max-hours"),
        ({"max_wait": 48}, "needs --spot"),
        ({"keep_alive": 400}, "between 0 and 360"),
        ({"bucket": "s3://bucket"}, "is not a bucket's name"),
        ({"subnets": ["net"], "security_groups": ["sg-1"]}, "must begin with subnet-"),
        ({"environment": ["X=" + "x" * 600]}, "SageMaker takes 512"),
        ({"inputs": ["code2=src"]}, "begins with that of another one, code"),
        ({"inputs": ["a=s3://bucket/x", "a=s3://bucket/y"]}, "each only once"),
    ],
)
def test_invalid_jobs_are_refused(
    more: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        launch(**more)
    assert said in str(caught.value)


def test_data_that_are_only_here_are_a_mistake_until_they_are_an_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.path=data/code-contests is a path on this machine.*--input data="):
        launch("runtime.trainers=8", recipe="codefu-7b-stage1")
    engines = ["rollout.engine=vllm"]
    job = launch(*engines, recipe="codefu-7b-stage1", inputs=["data=s3://bucket/code-contests"])
    assert str(job.config.data.model_dump()["path"]) == "/opt/ml/input/data/data"
    with pytest.raises(ConfigError, match=rf"model\.name={tmp_path} is a path on this machine"):
        launch(f"model.name={tmp_path}")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert launch(inputs=[f"model={tmp_path}"]).config.model.name == "/opt/ml/input/data/model"


def test_an_input_may_be_named_by_the_setting_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    job = launch("data.name=files", inputs=[f"data.train={tmp_path}", "data.test=s3://bucket/x", "notes=s3://bucket/y"])
    assert job.inputs == {"data_train": str(tmp_path), "data_test": "s3://bucket/x", "notes": "s3://bucket/y"}
    assert job.payload.channels == {"data.train": "data_train", "data.test": "data_test"}
    with pytest.raises(ConfigError, match="no such key"):
        launch(inputs=["data.nonsense=s3://bucket/x"])


def test_addresses_are_passed_on_and_tokens_only_if_asked_for() -> None:
    here = {"RAY_PROMETHEUS_HOST": "http://p:9090", "MLFLOW_TRACKING_TOKEN": "t", "HF_TOKEN": "h", "PATH": "/bin"}
    assert launch(here=here).environment == {
        "RAY_PROMETHEUS_HOST": "http://p:9090",
        "PYTHONPATH": "/opt/ml/input/data/code",
    }
    asked = launch(here=here, environment=["HF_TOKEN", "A=b=c", "PYTHONPATH=/own"]).environment
    assert (asked["HF_TOKEN"], asked["A"]) == ("h", "b=c")
    assert asked["PYTHONPATH"] == "/opt/ml/input/data/code:/own"


def test_hyperparameters_are_harmless_to_a_shell(tmp_path: Path) -> None:
    recipe = tmp_path / "it's $(mine).yaml"
    recipe.write_text("model: {name: dojang-tiny}\ndata: {name: arithmetic}\n")
    job = launch(recipe=str(recipe))
    assert job.hyperparameters["recipe"] == "it-s-mine"
    assert job.name == "dojang-it-s-mine"
    assert len(launch(name="x" * 100).name) == 48
