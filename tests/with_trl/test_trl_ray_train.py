"""examples/trl_ray_train.py: what it trains on, and that it goes on where it was, whoever is killed."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import groupby
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest

from dojang.data.rows import to_row
from dojang.types import Message, Problem

LACKING = [name for name in ("trl", "ray") if find_spec(name) is None]

pytestmark = [
    pytest.mark.skipif(bool(LACKING), reason=f"not installed here: {', '.join(LACKING)}; make test-trl has it"),
    pytest.mark.filterwarnings("default"),  # Ray's and TRL's are theirs to mend
    pytest.mark.slow,
]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "trl_ray_train.py"
STEPS, EVERY, WORKERS, NAME = 40, 4, 2, "sums"
PATIENCE_S = 240
ADDS = "```python\nprint(sum(map(int, input().split())))\n```"
SUM = {"private": [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5\n", "output": "10\n"}]}


class Run:
    """The example as a command, all of whose processes can be told by what is in their environment."""

    def __init__(self, storage: Path) -> None:
        self.mark, self.folder = f"TRL_RAY_TRAIN={uuid4().hex}", storage / NAME
        self.metrics = self.folder / "metrics.jsonl"
        task = {"name": "maths", "workers": 1, "timeout_s": 60}
        settings = {"steps": STEPS, "save-every": EVERY, "workers": WORKERS, "generations": 4}
        settings |= {"per-device-train-batch-size": 4}
        settings |= {"max-tokens": 16, "name": NAME, "storage": storage, "task": json.dumps(task)}
        self.settings, self.environment = settings, dict[str, str]()

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(EXAMPLE), *(f"--{key}={value}" for key, value in self.settings.items())]

    @contextmanager
    def driver(self) -> Iterator[subprocess.Popen[str]]:
        """A driver and a cluster of its own, of which nothing is left in the end."""
        place = tempfile.mkdtemp(prefix="tr", dir="/tmp")  # short: paths of sockets must be
        name, _, value = self.mark.partition("=")
        environment = {**os.environ, name: value, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        environment |= self.environment
        environment |= {"RAY_ADDRESS": "local", "RAY_TMPDIR": place, "TMPDIR": place, "RAY_AUTH_MODE": "disabled"}
        # A busy machine takes longer than Ray's 30 and 60 seconds.
        environment |= {"RAY_raylet_start_wait_time_s": "150", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "200"}
        with (Path(place) / "log").open("w+") as log:
            begun = subprocess.Popen(self.command, env=environment, stdout=log, stderr=log, text=True)
            try:
                yield begun
            except BaseException:
                log.seek(0)
                sys.stderr.write(log.read()[-8000:])
                raise
            finally:
                self.end()
                begun.wait()
                self.said = (Path(place) / "log").read_text()
                shutil.rmtree(place, ignore_errors=True)

    def end(self) -> None:
        while left := self.processes():
            for number in left:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.2)

    def processes(self, title: str = "") -> dict[int, str]:
        """Those of the run with this in their command line."""
        found = {}
        for folder in Path("/proc").iterdir():
            try:
                if not folder.name.isdecimal() or self.mark.encode() not in (folder / "environ").read_bytes():
                    continue
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it has ended
            if line and title in line:
                found[int(folder.name)] = line
        return found

    def rows(self) -> list[dict[str, Any]]:
        if not self.metrics.exists():
            return []
        return [json.loads(line) for line in self.metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def saved(self) -> int:
        """The step of the last checkpoint that Ray Train knows of."""
        with suppress(OSError, ValueError, TypeError, KeyError):  # there is none yet, or it is being written
            return int(self.snapshot()["latest_checkpoint_result"]["metrics"]["step"])
        return 0

    def snapshot(self) -> Any:
        return json.loads((self.folder / "checkpoint_manager_snapshot.json").read_text())

    def await_(self, begun: subprocess.Popen[str], what: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not what():
            assert begun.poll() is None, "it ended too early"
            assert time.monotonic() < until, f"too slow: {[row['step'] for row in self.rows()]}"
            time.sleep(0.05)


def test_training_resumes_after_any_process_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.driver() as driver:
        run.await_(driver, lambda: EVERY <= run.saved() < run.rows()[-1]["step"])  # so that something is lost
        first = run.saved()
        workers = run.processes("ray::RayTrainWorker")
        assert len(workers) == WORKERS
        before = {row["process"] for row in run.rows()}
        other = next(number for number in workers if number not in before)  # the one that writes no metrics
        os.kill(other, signal.SIGKILL)
        run.await_(driver, lambda: run.rows()[-1]["process"] not in before and run.saved() > first)
        second = run.saved()
        assert second < STEPS
        driver.kill()
        driver.wait()
    with run.driver() as driver:
        assert driver.wait(timeout=PATIENCE_S) == 0
        until = time.monotonic() + 20
        while left := run.processes("dojang.tasks.math_verify_process"):
            assert time.monotonic() < until, left
            time.sleep(0.2)

    rows = run.rows()
    lives = [[row["step"] for row in life] for _, life in groupby(rows, key=lambda row: row["process"])]
    assert len(lives) == 3
    for life in lives:
        assert life == list(range(life[0], life[-1] + 1))
    assert (lives[0][0], lives[2][-1]) == (1, STEPS)
    for begins, seen in ((lives[1][0], first), (lives[2][0], second)):
        assert begins > seen  # not at step 1, nor before the checkpoint that was there
        assert begins % EVERY == 1
    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:  # what was done again came out the same: weights, optimizer, problems and random numbers
        once = by_step.setdefault(row["step"], row)
        assert all(row[key] == once[key] for key in ("reward", "loss", "entropy", "grad_norm", "learning_rate")), row
    assert len(by_step) == STEPS

    began = min(row["time"] for row in rows if row["process"] == rows[-1]["process"])
    _check_checkpoints(run, {step: row["reward"] for step, row in by_step.items()}, began)


def _check_checkpoints(run: Run, rewards: dict[int, float], began: float) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    printed = re.search(r"^best: (\S+) \(reward (\S+)\)$", run.said, re.MULTILINE)
    assert printed is not None
    best = Path(printed[1])
    since = [fmean(rewards[step - back] for back in range(EVERY)) for step in range(EVERY, STEPS + 1, EVERY)]
    assert float(printed[2]) == pytest.approx(max(since), abs=1e-3)
    AutoModelForCausalLM.from_pretrained(best)
    AutoTokenizer.from_pretrained(best)
    assert {f"rng_state_{rank}.pth" for rank in range(WORKERS)} < {file.name for file in best.iterdir()}
    kept = {each["checkpoint_dir_name"] for each in run.snapshot()["checkpoint_results"]}
    assert best.parent.name in kept
    assert len(kept) <= 2  # the best and the last
    for stray in {folder.name for folder in run.folder.glob("checkpoint_*/")} - kept:  # uploads that were cut off
        assert (run.folder / stray).stat().st_mtime < began, stray


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = spec_from_file_location("trl_ray_train", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(example: ModuleType, monkeypatch: pytest.MonkeyPatch, *given: str) -> Namespace:
    monkeypatch.setattr(sys, "argv", ["example", *given])
    arguments: Namespace = example.parse()
    return arguments


@pytest.mark.parametrize(
    ("ability", "reference", "right", "wrong"),
    [("math", r"\frac{1}{2}", r"It is \boxed{0.5}.", r"It is \boxed{2}."), ("code", SUM, ADDS, "I cannot.")],
)
def test_the_data_says_how_it_is_judged(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ability: str,
    reference: object,
    right: str,
    wrong: str,
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    asked = Problem("it/1", "it", (Message("user", "Well?"),), reference)
    rows = [to_row(asked, ability=ability, split="train", index=0)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    task = {"code": ["--task", '{"name": "code", "language": "python3"}', "--judge", '{"workers": 1}']}
    one_prompt = ["--workers", "1", "--per-device-train-batch-size", "8"]
    arguments = parsed(example, monkeypatch, "--data", str(tmp_path), *one_prompt, *task.get(ability, []))
    columns = example.problems(vars(arguments)).to_dict()
    twice = {name: 2 * values for name, values in columns.items()}
    said = [[{"role": "assistant", "content": each}] for each in (right, wrong)]
    try:
        good, bad = arguments.reward(completions=said, prompts=twice.pop("prompt"), **twice)
    finally:
        arguments.reward.close()
    assert good == 1.0
    assert bad <= 0.0


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--data", "/not/there"], "/not/there is not a directory"),
        (["--storage", "s3://"], "s3:// names no bucket; write s3://BUCKET/PATH"),
        (["--storage", f"{__file__}/runs"], f"{__file__} is a file; give a directory"),
        (["--storage", "nfs://host/runs"], "nfs://host/runs cannot be used"),
        (["--workers", "-1"], "--workers: -1 is too small; it must be 1 or more"),
        (["--workers", "two"], "--workers: two is not a whole number"),
        (["--steps", "0"], "--steps: 0 is too small"),
        (["--epochs", "0"], "--epochs: 0 is too small"),
        (["--epochs", "2", "--steps", "4"], "not allowed with"),
        (["--generations", "1"], "--generations: 1 is too small; it must be 2 or more"),
        (["--per-device-train-batch-size", "0"], "--per-device-train-batch-size: 0 is too small"),
        (["--per-device-train-batch-size", "3"], "--generations 8 does not divide the 6 completions of a step"),
        (["--max-tokens", "-16"], "--max-tokens: -16 is too small"),
        (["--lr", "0"], "--lr: 0 must be greater than 0"),
        (["--lr", "nan"], "--lr: nan must be greater than 0"),
        (["--seed", "-1"], "--seed: -1 is too small"),
        (["--save-every", "0"], "--save-every: 0 is too small"),
        (["--keep", "0"], "--keep: 0 is too small"),
        (["--max-failures", "-2"], "--max-failures: -2 is too small"),
        (["--limit", "0"], "--limit: 0 is too small"),
        (["--limit", "1000000"], "--limit 1000000: there are only"),
        (["--limit", "4"], "a step needs 16 prompts, and there are only 4 rows"),
        (["--vllm-gpu-memory-utilization", "1.5"], "must be greater than 0 and at most 1"),
        (["--vllm"], "pip install 'trl[vllm]'"),
        (["--task", "sums"], "sums"),
        (["--task", "{maths"], "{maths"),
    ],
)
def test_invalid_arguments_are_refused_before_ray_starts(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    complaint: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(example, monkeypatch, *given)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_the_published_numbers(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 rows, 4 workers x 4 completions, groups of 8: 50 steps an epoch, as TRL's sampler counts them."""
    from trl.trainer.utils import RepeatSampler

    given = ["--limit=100", "--epochs=2", "--workers=4", "--per-device-train-batch-size=4", "--generations=8"]
    arguments = parsed(example, monkeypatch, *given)
    dataset = example.problems(vars(arguments))
    assert len(dataset) == 100
    whole = example.problems({**vars(arguments), "limit": None})
    assert dataset[:] == whole.shuffle(seed=42).select(range(100))[:]
    assert arguments.steps == 2 * len(RepeatSampler(dataset, mini_repeat_count=8, batch_size=2)) / 16 == 100


def test_the_command_of_the_documentation_is_understood(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = (EXAMPLE.parents[1] / "docs" / "reproduce.md").read_text().replace("\\\n", " ")
    [command] = [line for line in text.splitlines() if line.startswith("python examples/trl_ray_train.py")]
    asked = [Problem(f"it/{at}", "it", (Message("user", f"What is {at} + 1?"),), str(at + 1)) for at in range(120)]
    rows = [to_row(each, ability="math", split="train", index=at) for at, each in enumerate(asked)]
    (tmp_path / "data" / "deepmath").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / "deepmath" / "train.parquet")
    monkeypatch.chdir(tmp_path)
    arguments = parsed(example, monkeypatch, *shlex.split(command)[2:])
    assert (arguments.steps, arguments.workers, arguments.gpus) == (100, 4, True)


@pytest.mark.parametrize(
    ("given", "there", "used"),
    [(["--gpus"], True, True), (["--gpus", "--no-vllm"], True, False), (["--gpus"], False, False), ([], True, False)],
)
def test_vllm_is_used_on_gpus_where_it_is_installed(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: list[str], there: bool, used: bool
) -> None:
    monkeypatch.setattr(example, "find_spec", lambda name: Namespace(origin="vllm/__init__.py") if there else None)
    arguments = parsed(example, monkeypatch, *given)
    assert arguments.vllm is used
    made = example.settings({**vars(arguments), "gpus": False}, str(tmp_path))  # bfloat16 is refused without a GPU
    assert made.use_vllm is used
    assert (made.vllm_mode, made.vllm_gpu_memory_utilization) == ("colocate", 0.3)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket of moto's, with the environment that leads pyarrow and its workers there."""
    pytest.importorskip("moto", reason="moto is not installed here; make test-trl has it")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    told = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in {**told, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    made = boto3.resource("s3").Bucket("runs")
    made.create()
    yield made
    server.stop()


def test_a_bucket_that_does_not_exist_is_refused(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bucket: Any
) -> None:
    with pytest.raises(SystemExit):
        parsed(example, monkeypatch, "--storage", "s3://other/a?region=us-east-1")
    assert "there is no bucket other" in capsys.readouterr().err
    assert list(bucket.objects.all()) == []


def test_a_run_in_a_bucket_is_resumed(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # nothing is created here
    run = Run(tmp_path)
    run.settings |= {"storage": "s3://runs/trl?region=us-east-1", "steps": 4, "save-every": 2, "workers": 1}

    def metrics() -> list[dict[str, Any]]:
        return [json.loads(line) for line in bucket.Object(f"trl/{NAME}/metrics.jsonl").get()["Body"].iter_lines()]

    with run.driver() as driver:
        assert driver.wait(timeout=PATIENCE_S) == 0
    once = metrics()
    assert [row["step"] for row in once] == [1, 2, 3, 4]
    best = re.search(r"^best: s3://runs/(\S+) \(reward", run.said, re.MULTILINE)
    assert best is not None
    kept = {item.key for item in bucket.objects.all()}
    assert f"{best[1]}/model.safetensors" in kept
    run.settings["steps"] = 6
    with run.driver() as driver:
        assert driver.wait(timeout=PATIENCE_S) == 0
    again = metrics()
    assert again[:4] == once
    assert [row["step"] for row in again[4:]] == [5, 6]
    assert list(tmp_path.iterdir()) == []
