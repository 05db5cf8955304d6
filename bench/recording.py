"""Cost of recording a run: seconds of an update with and without token values, and bytes on disk.

Bytes are those of a run: of a recipe that is trained for some steps here, or of a directory given with --run.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from dojang.algos.grpo import GrpoConfig
from dojang.core.run_dir import RunDir
from dojang.track.file_tracker import FileTracker
from dojang.trainer.config import TrainConfig
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group
from dojang.weight_sync.versions import WeightVersions
from machine import Row, arguments, report
from shapes import random
from train_update import SIZES, Case, cases

ROUNDS = 7
FLOATS = ("trainer_logprobs", "entropies")
ENCODINGS: Mapping[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False},
    "dictionary": {"use_dictionary": True},
    "byte stream split": {"use_dictionary": False, "use_byte_stream_split": True},
}


def main() -> None:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--recipe", default="quickstart-code", help="recipe whose records are measured")
    parser.add_argument("--steps", type=int, default=4, help="training steps of the recipe")
    parser.add_argument("--run", type=Path, help="measure the records of this run directory instead")
    parser.add_argument("--tiny", action="store_true", help="a tiny model in the timed update, to try this out")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    case = cases(SIZES["tiny" if options.tiny else device])[1]
    rows = list(update_rows(case if device == "cuda" else replace(case, prompts=2), device))
    if options.run is not None:
        rows += record_rows(RunDir(options.run))
    else:
        with tempfile.TemporaryDirectory() as folder:
            directory = RunDir(Path(folder) / options.recipe)
            command = [sys.executable, "-m", "dojang", "train", options.recipe, f"steps={options.steps}"]
            subprocess.run([*command, "--run-dir", str(directory.path)], check=True, stdout=sys.stderr)
            rows += record_rows(directory)
    report("recording", rows, options.json)


def update_rows(case: Case, device: str) -> Iterator[Row]:
    """Seconds of updates with token values, taken and written to a file, and of updates without, in turns."""
    groups, trainers = case.groups(), [make_trainer(case, device, token_values=each) for each in (True, False)]
    taken: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory() as folder:
        tracker = FileTracker(RunDir(Path(folder)), None)  # type: ignore[arg-type]  # needed for rollouts only
        for place in range(1 + ROUNDS):
            for trainer, seconds in zip(trainers, taken, strict=True):
                started = time.perf_counter()
                asyncio.run(update(trainer, groups, tracker))
                if place:
                    seconds.append(time.perf_counter() - started)
    mine, plain = (min(each) for each in taken)  # what other programs take is no cost of recording
    count = sum(sample.response_length for group in groups for sample in group.samples)
    yield Row(f"update, {case.name}", "token values", "none", mine, plain, "s", plain / mine, f"{count:,} tokens")


def make_trainer(case: Case, device: str, *, token_values: bool) -> TorchTrainer:
    compute = torch.bfloat16 if device == "cuda" else torch.float32
    return TorchTrainer(
        random(case.config, device),
        None,
        None,  # type: ignore[arg-type]  # needed for saving only
        GrpoConfig().make(max_tokens=10**5),
        WeightVersions(compute),
        TrainConfig(lr=1e-6),
        total_updates=100,
        max_tokens=10**5,
        temperature=1.0,
        compute=compute,
        token_values=token_values,
    )


async def update(trainer: TorchTrainer, groups: Sequence[Group], tracker: FileTracker) -> None:
    await trainer.forward_backward(groups)
    await trainer.optim_step()
    if values := await trainer.take_token_values():
        tracker.token_values(1, values)


def record_rows(directory: RunDir) -> Iterator[Row]:
    """Bytes of a run's records next to its rollouts of training, per 1,000 sampled tokens and per step."""
    steps = directory.rollout_steps().get("train", [])
    files = [directory.rollouts("train", step) for step in steps]
    thousands = sum(sum(pq.read_table(path)["response_length"].to_pylist()) for path in files) / 1000
    total = sum(path.stat().st_size for path in files)
    unit = "bytes per 1,000 tokens"

    def beside(name: str, size: float, notes: str = "") -> Row:
        value, baseline = size / thousands, total / thousands
        return Row("size on disk", name, "rollouts", value, baseline, unit, baseline / value if value else None, notes)

    values = [directory.token_values("train", step) for step in steps]
    yield beside("token values", sum(path.stat().st_size for path in values if path.exists()))
    columns = column_bytes(files)
    for name in dict.fromkeys([*(name for name, _ in columns.most_common(6)), "logprobs", "spans", "tests"]):
        yield beside(f"rollouts, column {name}", columns[name], f"{columns[name] / total:.1%}")
    for path in (directory.metrics, directory.timeline):
        if path.exists():
            size = path.stat().st_size
            yield beside(path.name, size, f"{size / len(steps):,.0f} bytes per step")
    if directory.vocabulary().exists():
        yield beside("vocabulary", directory.vocabulary().stat().st_size, "once per run")
    yield from encoding_rows([path for path in values if path.exists()], FLOATS, thousands)
    yield from encoding_rows(files, ("logprobs",), thousands)


def column_bytes(files: Sequence[Path]) -> Counter[str]:
    """Compressed bytes of each column."""
    found: Counter[str] = Counter()
    for path in files:
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            chunks = [metadata.row_group(group).column(place) for place in range(metadata.num_columns)]
            for chunk in chunks:
                found[chunk.path_in_schema.partition(".")[0]] += chunk.total_compressed_size
    return found


def encoding_rows(files: Sequence[Path], names: Sequence[str], thousands: float) -> Iterator[Row]:
    """Bytes of columns of floats in several encodings, all with zstd."""
    sizes: Counter[str] = Counter()
    for path in files:
        table = pq.read_table(path, columns=list(names))
        for encoding, settings in ENCODINGS.items():
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, compression="zstd", **settings)
            sizes[encoding] += sink.getvalue().size
    for encoding, size in sizes.items():
        mine, plain = size / thousands, sizes["plain"] / thousands
        yield Row(", ".join(names), encoding, "plain", mine, plain, "bytes per 1,000 tokens", plain / mine)


if __name__ == "__main__":
    main()
