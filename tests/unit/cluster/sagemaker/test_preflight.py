"""Jobs that cannot work are refused before anything is uploaded."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dojang.cluster.sagemaker.job import Job, plan
from dojang.cluster.sagemaker.options import Options
from dojang.core.errors import ConfigError

ROLE = "arn:aws:iam::123456789012:role/Trainer"
ENGINES = ("rollout.engine=vllm",)
QLORA = "gsm8k-qwen2.5-0.5b-qlora"


def launch(recipe: str, *overrides: str, **more: Any) -> Job:
    given = {"role": ROLE, "instance_type": "ml.p4de.24xlarge", **more}
    return plan(recipe, overrides, Options(**given), local={})


def refused(recipe: str, *overrides: str, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        launch(recipe, *overrides, **more)
    assert str(caught.value).startswith("nothing was uploaded; ")
    return str(caught.value)


def rows(folder: Path, tier: str) -> Path:
    """Prepared problems of one tier."""
    truth = {"private": [{"input": "1\n", "output": "1\n"}]}
    for split in ("train", "test"):
        row = {
            "data_source": "code_contests",
            "prompt": [{"role": "user", "content": "Print the number."}],
            "ability": "code",
            "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)},
            "extra_info": {"id": f"{split}/1", "split": split, "index": 0, "tier": tier},
        }
        (folder / split).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([row]), folder / split / "0.parquet")
    return folder


def gsm8k(folder: Path) -> Path:
    folder.mkdir()
    for split in ("train", "test"):
        lines = [json.dumps({"question": f"What is {n} + {n}?", "answer": f"It is.\n#### {2 * n}"}) for n in range(50)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_an_empty_data_folder_is_refused(tmp_path: Path) -> None:
    assert "has no train/*.parquet" in refused("codefu-7b-stage1", *ENGINES, inputs=[f"data={tmp_path}"])
    assert "train.jsonl" in refused(QLORA, inputs=[f"data={tmp_path}"])


def test_rows_without_the_tier_that_is_asked_for_are_refused(tmp_path: Path) -> None:
    said = refused("codefu-7b-stage1", *ENGINES, inputs=[f"data={rows(tmp_path / 'data', 'hard')}"])
    assert "holds no problems of the tiers easy" in said


def test_programs_whose_tests_cannot_be_read_are_refused(tmp_path: Path) -> None:
    data = rows(tmp_path / "data", "easy")
    table = pq.read_table(data / "train" / "0.parquet").to_pylist()
    table[0]["reward_model"]["ground_truth"] = json.dumps({"nonsense": 1})
    pq.write_table(pa.Table.from_pylist(table), data / "train" / "0.parquet")
    assert "data: " in refused("codefu-7b-stage1", *ENGINES, inputs=[f"data={data}"])


def test_servers_at_localhost_are_refused_with_what_to_type(tmp_path: Path) -> None:
    data = rows(tmp_path / "data", "easy")
    served = ("codefu-7b-stage1", "runtime=ray", "rollout.engine=remote")
    said = refused(*served, "rollout.engine.url=[http://127.0.0.1:8000]", inputs=[f"data={data}"])
    assert "rollout.engine.name=remote at http://127.0.0.1:8000" in said
    assert "add rollout.engine=vllm for engines in the job" in said
    job = launch("codefu-7b-stage1", "runtime=local", inputs=[f"data={data}"], instance_count=2)
    assert job.command.endswith("runtime.name=ray runtime.trainers=8 runtime.engines=8")
    launch(*served, "rollout.engine.url=[http://10.0.0.7:8000]", inputs=[f"data={data}"])


def test_a_judge_at_localhost_is_refused() -> None:
    assert "add judge.url=[]" in refused("quickstart-code", "judge.url=[http://localhost:8642]")


def test_more_processes_than_gpus_are_refused(tmp_path: Path) -> None:
    data = f"data={gsm8k(tmp_path / 'data')}"
    said = refused(QLORA, "runtime.name=ray", "runtime.trainers=8", "runtime.engines=4", inputs=[data])
    assert "want 12 GPUs, and there are 8" in said
    unknown_size = ["model.name=some-org/some-model", "runtime.trainers=8", "runtime.engines=4"]
    assert "want 12 GPUs" in refused(QLORA, *unknown_size, inputs=[data])


@pytest.mark.parametrize("instance", ["ml.m5.2xlarge", "ml.c7i.48xlarge"])
def test_seven_billion_parameters_on_a_cpu_instance_are_refused(instance: str, tmp_path: Path) -> None:
    data = rows(tmp_path / "data", "easy")
    said = refused("codefu-7b-stage1", *ENGINES, instance_type=instance, inputs=[f"data={data}"])
    assert f"7.62B parameters, but {instance} has no GPU" in said


def test_weights_that_can_never_fit_are_refused() -> None:
    said = refused("quickstart", "model.name=Qwen/Qwen3-8B", instance_type="ml.g5.2xlarge")
    assert "weights, gradients and optimizer alone take" in said


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere", "models/codefu-7b-stage1"])
def test_a_model_folder_that_does_not_exist_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused("quickstart", f"model.name={name}")
    assert f"model directory '{name}' does not exist" in said
    assert "--input model=" in said


def test_an_input_for_the_model_must_be_one(tmp_path: Path) -> None:
    assert "has no config.json" in refused("quickstart", inputs=[f"model={tmp_path}"])


def test_paths_of_the_job_are_noted_as_unchecked() -> None:
    job = launch(QLORA, inputs=["data=s3://bucket/gsm8k", "model=s3://bucket/model"])
    said = "\n".join(job.notes)
    assert "not checked: data.path=/opt/ml/input/data/data" in said
    assert "not checked: model.name=/opt/ml/input/data/model" in said


def test_an_unknown_instance_type_is_noted_as_unchecked() -> None:
    job = launch("quickstart", instance_type="ml.trn1.2xlarge")
    assert any("ml.trn1.2xlarge is not in the plan's table" in note for note in job.notes)
    assert job.command.endswith("entry-point runtime.name=ray")


def test_all_gpus_of_the_instances_are_used(tmp_path: Path) -> None:
    data = f"data={gsm8k(tmp_path / 'data')}"
    job = launch(QLORA, instance_type="ml.g6.48xlarge", inputs=[data])
    assert job.command.endswith("launch entry-point runtime.name=ray runtime.trainers=4 runtime.engines=4")
    assert job.config.runtime.model_dump()["trainers"] == 4
    assert job.notes[0] == "runtime.trainers=4 runtime.engines=4 chosen for the 8 GPUs of the job"
    one = launch(QLORA, instance_type="ml.g6.xlarge", inputs=[data])
    assert one.command.endswith("runtime.trainers=1 runtime.engines=1 runtime.gpus=0.5")


def test_counts_that_are_chosen_beside_typed_ones_reach_the_job(tmp_path: Path) -> None:
    data = f"data={gsm8k(tmp_path / 'data')}"
    job = launch(QLORA, "runtime.trainers=2", instance_type="ml.g6.48xlarge", inputs=[data])
    assert job.command.endswith("runtime.name=ray runtime.engines=6")
    assert job.name == "dojang-gsm8k-qwen2-5-0-5b-qlora"
    counts = job.config.runtime.model_dump()
    assert (counts["trainers"], counts["engines"]) == (2, 6)


def test_shares_of_a_gpu_are_counted_gpu_by_gpu(tmp_path: Path) -> None:
    data = f"data={gsm8k(tmp_path / 'data')}"
    job = launch(QLORA, "runtime.gpus=0.3", instance_type="ml.g6.48xlarge", inputs=[data])
    assert job.command.endswith("runtime.trainers=12 runtime.engines=12")  # three on each of eight
    said = refused(QLORA, "runtime.gpus=0.3", "runtime.engines=14", "runtime.trainers=12", inputs=[data])
    assert "14 engines of 0.3 GPUs" in said
    assert "beside 12 trainers there is room for 12" in said


def test_engines_that_no_machine_has_room_for_are_refused(tmp_path: Path) -> None:
    given = {"inputs": [f"data={rows(tmp_path / 'data', 'easy')}"]}
    sixteen = (
        "code-qwen3-8b-m2po-full",
        "task.language=cpp17",
        "rollout.engine.tensor_parallel_size=16",
        "runtime.engines=1",
    )
    said = refused(*sixteen, instance_count=4, **given)
    assert "1 engines of 16 GPUs, each in one machine of 8, and beside 4 trainers there is room for 0" in said
    groups = ["a=ml.p4de.24xlarge:2", "b=ml.g6.12xlarge:2"]
    said = refused(*sixteen, instance_type="", groups=groups, **given)
    assert "rollout.engine.tensor_parallel_size=16 exceeds the 8 GPUs of one instance" in said
    seven = ("codefu-7b-stage1", "rollout.engine.tensor_parallel_size=7", "runtime.engines=2")
    said = refused(*seven, "runtime.trainers=2", "train.sequence_parallel=1", instance_count=2, **given)
    assert "2 engines of 7 GPUs, each in one machine of 8, and beside 2 trainers there is room for 1" in said
    assert launch(*seven, instance_count=3, **given).groups


def test_settings_that_waste_the_instances_are_refused(tmp_path: Path) -> None:
    given = {"inputs": [f"data={rows(tmp_path / 'data', 'easy')}"], "instance_count": 2}
    said = refused("codefu-7b-stage1", "model.device=cpu", **given)
    assert "has 7.62B parameters, but model.device=cpu uses none; leave it out" in said
    assert "runtime.gpus=0 uses none" in refused("codefu-7b-stage1", "runtime.gpus=0", **given)
    said = refused("codefu-7b-stage1", "runtime.address=10.0.0.1:6379", **given)
    assert "runtime.address=10.0.0.1:6379: a job starts its own Ray cluster" in said
    said = refused("codefu-7b-stage1", "rollout.max_model_len=null", "rollout.max_tokens=200000", **given)
    assert "answers of 200000 tokens leave no room for a prompt in the policy's context of 131072" in said
    said = refused("codefu-7b-stage1", "rollout.max_model_len=200000", **given)
    assert "rollout.max_model_len=200000 is more than the policy's context of 131072" in said


def test_advice_about_the_kv_cache_can_be_followed(tmp_path: Path) -> None:
    given = {"inputs": [f"data={rows(tmp_path / 'data', 'easy')}"]}
    wide = ("codefu-7b-stage1", "rollout.prompts_per_step=64", "rollout.group_size=16")
    (note,) = (each for each in launch(*wide, **given).notes if "the KV cache holds" in each)
    assert note.endswith("more engines, or a smaller rollout.max_tokens, decode faster")
    (note,) = (
        each for each in launch(*wide, "rollout.engine.kv_cache_gb=8", **given).notes if "the KV cache holds" in each
    )
    assert note.endswith("a larger rollout.engine.kv_cache_gb decodes faster")


def test_benchmarks_are_loaded_as_the_data_are(tmp_path: Path) -> None:
    data, empty = rows(tmp_path / "data", "easy"), tmp_path / "empty"
    empty.mkdir()
    (empty / "README").write_text("nothing")
    setting = "eval.benchmarks.more.data.path"
    named = ("codefu-7b-stage1", "eval.benchmarks.more.data.name=prepared")
    said = refused(*named, inputs=[f"data={data}", f"{setting}={empty}"])
    assert "data: eval.benchmarks.more: " in said
    assert launch(*named, inputs=[f"data={data}", f"{setting}={data}"]).inputs
    unseen = launch(*named, inputs=[f"data={data}", f"{setting}=s3://bucket/more"])
    assert any(f"not checked: {setting}=/opt/ml" in note for note in unseen.notes)
    same = ("codefu-7b-stage1", "eval.benchmarks.code_contests.data.name=prepared")
    said = refused(*same, inputs=[f"data={data}", f"eval.benchmarks.code_contests.data.path={data}"])
    assert "has the name of a data source" in said


def test_inputs_with_linked_or_no_files_are_refused(tmp_path: Path) -> None:
    data, linked, empty = rows(tmp_path / "data", "easy"), tmp_path / "linked", tmp_path / "empty"
    linked.mkdir()
    for split in ("train", "test"):
        (linked / split).symlink_to(data / split)
    assert f"{linked}/train is a link to a folder" in refused("codefu-7b-stage1", inputs=[f"data={linked}"])
    empty.mkdir()
    assert "holds no files" in refused("quickstart", inputs=[f"more={empty}"])
    (empty / "lost").symlink_to(tmp_path / "nowhere")
    assert "no permission to read" in refused("quickstart", inputs=[f"more={empty}"])


def test_idle_gpus_are_reported(tmp_path: Path) -> None:
    data = f"data={gsm8k(tmp_path / 'data')}"
    job = launch(QLORA, "runtime.name=ray", "runtime.trainers=1", "runtime.engines=1", inputs=[data])
    assert any("6 of 8 GPUs stay idle" in note for note in job.notes)


def test_groups_count_together() -> None:
    groups = ["trainers=ml.p4de.24xlarge:2", "judges=ml.c7i.24xlarge:4"]
    job = launch("quickstart-code", instance_type="", groups=groups)
    assert "runtime.trainers=8 runtime.engines=8" in job.command
    mixed = launch("quickstart-code", instance_type="", groups=["a=ml.p4de.24xlarge:1", "b=ml.g6.12xlarge:1"])
    assert "runtime.trainers=6 runtime.engines=6" in mixed.command


def test_the_checks_load_no_torch() -> None:
    code = (
        "import sys; from dojang.cluster.sagemaker.job import plan;"
        "from dojang.cluster.sagemaker.options import Options;"
        f"plan('quickstart-code', [], Options(role={ROLE!r}, instance_type='p4de.24xlarge'), local={{}});"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_mlflow_of_the_environment_is_checked_and_passed_on() -> None:
    options = Options(role=ROLE, instance_type="ml.c7i.4xlarge")
    arn = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/app-1"
    here = {"MLFLOW_TRACKING_URI": arn, "MLFLOW_TAGS": '{"a": "b"}'}
    job = plan("quickstart", [], options, local=here)
    assert {name: job.environment[name] for name in here} == here
    with pytest.raises(ConfigError, match="MLFLOW_TAGS='a' is not a JSON object"):
        plan("quickstart", [], options, local={**here, "MLFLOW_TAGS": "a"})
    lost = plan("quickstart", [], options, local={"MLFLOW_TRACKING_URI": "http://me:pass@localhost:5000"})
    assert any("inside the job's container" in note for note in lost.notes)
    assert not any("pass" in note for note in lost.notes)
