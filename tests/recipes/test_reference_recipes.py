"""Recipes for hardware that is not here: checked whole, and two steps of each with the shipped model."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import commands
from dojang.build.prepare_dataset import DATASETS
from dojang.config import recipe
from dojang.core import section
from dojang.core.run_dir import RunDir
from dojang.data.prepare_rows import prepare
from dojang.data.readers import find
from dojang.models.packages import MODELS
from dojang.runs import dry_run

pytestmark = pytest.mark.slow

TINY = [
    "model.name=dojang-tiny",
    "model.device=cpu",
    "steps=2",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "rollout.max_tokens=24",
    "rollout.engine=torch",
    "runtime=local",
    "rollout.max_model_len=null",
    "train.warmup_steps=0",
    "train.warmup_ratio=0",
    "train.sequence_parallel=1",
    "train.minibatches=1",
    "eval.problems=2",
]
TESTS = {"input": ["1 2\n"], "output": ["3\n"]}
CONTEST = {
    "description": "Read two numbers and write their sum, which is never above one thousand.",
    "public_tests": TESTS,
    "private_tests": {"input": ["2 2\n", "2 3\n"], "output": ["4\n", "5\n"]},
    "generated_tests": {"input": [], "output": []},
    "time_limit": {"seconds": 2, "nanos": 0},
    "memory_limit_bytes": 256_000_000,
    "input_file": "",
    "output_file": "",
}


def rows(name: str) -> dict[str, list[dict[str, object]]]:
    """A few problems that are short enough for the shipped model, in a dataset's own layout, by file."""
    if name == "gsm8k":
        made = [{"question": f"What is {a} and {a}?", "answer": f"Twice.\n#### {2 * a}"} for a in range(40)]
        return {"train.jsonl": made, "test.jsonl": made[:2]}
    if name == "deepmath":
        made = [{"question": f"What is {a} plus {a}?", "final_answer": str(2 * a), "difficulty": 1} for a in range(8)]
        return {"train.jsonl": made, "test.jsonl": made[:2]}
    if name == "mbpp":
        words = ["apple", "stone", "river", "cloud", "tiger", "piano"]
        made = [
            {
                "task_id": number,
                "text": f"Write a function {word} that adds {number}.",
                "code": f"def {word}(x):\n    return x + {number}",
                "test_list": [f"assert {word}({x}) == {x + number}" for x in range(2)],
            }
            for number, word in zip((11, 12, 601, 602, 603, 604), words, strict=True)
        ]
        return {"mbpp.jsonl": made}
    if name == "deepcoder":
        tests = json.dumps([{"type": "stdin_stdout", "input": f"{a}\n", "output": f"{a + 1}\n"} for a in range(2)])
        made = [{"problem": f"Add {a}.", "solutions": [], "tests": tests} for a in range(8)]
        return {"train.jsonl": made[:6], "test.jsonl": made[6:]}
    made = [
        {**CONTEST, "name": f"{at}_A. Sum", "cf_rating": rating} for at, rating in enumerate((800, 1000, 1100, 2200))
    ]
    return {"train.jsonl": made, "test.jsonl": [{**each, "name": f"test {each['name']}"} for each in made]}


RECIPES = [
    "gsm8k-qwen2.5-0.5b-qlora",
    "gsm8k-qwen2.5-coder-1.5b",
    "gsm8k-qwen2.5-coder-1.5b-qlora",
    "gsm8k-smollm2-distill",
    "mbpp-1.5b",
    "python-tool-1.5b",
    "coder-tester-1.5b",
    "codefu-1.5b",
    "deepmath-qwen2.5-0.5b",
    "codefu-7b-post",
    "codefu-7b-stage1",
    "codefu-7b-stage2",
    "code-qwen3-8b-coder-tester",
    "code-qwen3-8b-m2po-baseline",
    "code-qwen3-8b-m2po-delta",
    "code-qwen3-8b-m2po-full",
]
IN_ONE_PROCESS = """
import json, sys
from pathlib import Path
from dojang.runs import training
for name, overrides in json.loads(sys.argv[1]).items():
    training.run(name, overrides, Path(sys.argv[2], name), resume=False)
"""


def prepared(recipe_name: str, folder: Path) -> list[str]:
    """Settings with which a recipe finds a few problems, written to `folder`."""
    names = {
        "gsm8k": "gsm8k",
        "deepmath": "deepmath",
        "codefu": "code-contests",
        "code": "deepcoder",
        "mbpp": "mbpp",
        "coder": "mbpp",
        "python": "gsm8k",
    }
    name = names[recipe_name.split("-")[0]]
    raw = folder / "raw"
    raw.mkdir(parents=True)
    for file, made in rows(name).items():
        (raw / file).write_text("\n".join(map(json.dumps, made)))
    if name == "gsm8k":
        return [f"data.path={raw}"]
    if name == "deepmath":  # names are those of the questions
        (raw / "test.jsonl").write_text(json.dumps({"question": "What is 9 plus 9?", "final_answer": "18"}))
    # The contests of both splits are one problem under several names.
    prepare(DATASETS[name](), find(str(raw)), folder / "prepared", keep_overlap=True, on_progress=lambda *_: None)
    return [f"data.path={folder / 'prepared'}"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The settings of each recipe."""
    folder = tmp_path_factory.mktemp("data")
    return {name: prepared(name, folder / name) for name in RECIPES if gradable(name)}


@pytest.fixture(scope="module")
def runs(data: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run directories of all recipes. One process runs them all: to start one takes seconds."""
    folder = tmp_path_factory.mktemp("runs")
    asked = json.dumps({name: [*TINY, *where, *smaller(name)] for name, where in data.items()})
    (folder / "in_one_process.py").write_text(IN_ONE_PROCESS)
    command = [sys.executable, str(folder / "in_one_process.py"), asked, str(folder)]
    result = commands.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def gradable(name: str) -> bool:
    return "deepmath" not in name or importlib.util.find_spec("math_verify") is not None


def smaller(name: str) -> list[str]:
    if "tester" in name:
        # The tester's prompt about a function takes nearly the whole context of the shipped model.
        short = ["rollout.max_tokens=8", "tester.max_tokens=8"] if "1.5b" in name else ["tester.max_tokens=24"]
        return ["tester.model=dojang-tiny", *short, "tester.engines=null", "tester.trainers=null"]
    teacher = ["distillation.teacher=dojang-tiny-code"] if "distill" in name else []  # with another tokenizer
    return [*teacher, *(["data.shots=0"] if "gsm8k" in name else [])]


@pytest.mark.parametrize("name", RECIPES)
def test_a_dry_run_accepts_the_recipe(data: dict[str, list[str]], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "find_spec", lambda package: True)  # vLLM and Ray are on the cluster
    if name not in data:
        pytest.skip("math-verify is not installed")
    where = data[name]
    config = recipe.load(name, [*where, "model.device=cpu", *(["model.name=dojang-tiny"] if "stage2" in name else [])])
    if "stage2" not in name:
        known = MODELS.get(config.model.name)
        assert (known.title if known else config.model.name) in dry_run.describe(config)


def test_how_weights_travel_is_all_that_differs() -> None:
    full, delta = (recipe.load(f"code-qwen3-8b-m2po-{kind}", []) for kind in ("full", "delta"))
    assert delta.rollout.engine.weight_sync == "delta"
    assert recipe.differences(delta, full) == {"rollout.engine.weight_sync": ("delta", "full")}


@pytest.mark.parametrize("name", RECIPES)
def test_two_steps_train_without_judge_errors(data: dict[str, list[str]], runs: Path, name: str) -> None:
    if name not in data:
        pytest.skip("math-verify is not installed")
    summary = json.loads((runs / name / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 2)
    found = [json.loads(line) for line in RunDir(runs / name).metrics.read_text().splitlines()]
    assert [row["judge/errors"] for row in found if "judge/errors" in row] == [0.0, 0.0]
    if "tester" in name:
        assert [row["tester/groups/total"] for row in found if "tester/groups/total" in row] == [2.0, 2.0]
        assert [row["tester/judge/errors"] for row in found if "tester/judge/errors" in row] == [0.0, 0.0]
        weights = "adapter_model" if recipe.load(name, []).train.lora else "model"
        assert (runs / name / "checkpoints" / "last" / "tester" / f"{weights}.safetensors").is_file()
