"""What `dojang plan` predicts beside what is measured: memory and seconds of updates, of decoding, and of short runs.

Each row has the prediction as `value`, the measurement as `baseline_value`, and their quotient: 1 is right, above 1 the
plan asks for too much. On a GPU memory is the allocator's peak; on a processor it is the most that a process of its own
has had, and seconds are the processor's, divided by the threads: what others do on the machine does not count. Models
have random weights, on which neither depends; the short run is the quickstart's, which ships with dojang.

With --recorded it measures nothing: it compares plans with the runs of docs/results and with published figures, and
prints Markdown tables (plan_recorded.py, plan_figures.py).
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch
from transformers import AutoTokenizer, PreTrainedConfig

from dojang import models
from dojang.algos.grpo import GrpoConfig
from dojang.config import recipe
from dojang.config.run_config import RunConfig
from dojang.engine.torch_engine import TorchEngine
from dojang.planning.estimate import Estimate, Subject, estimate
from dojang.planning.instances import Instance
from dojang.planning.shapes import Shape, shape_of
from dojang.planning.speed import Machine, optimizer_s, update_s
from dojang.planning.this_machine import this_machine
from dojang.planning.tokens_per_step import Lengths
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Sampling
from dojang.weight_sync.versions import WeightVersions
from machine import Row, arguments, report
from plan_figures import figures_table
from plan_recorded import RUNS, TOLERANCE, compare, table
from shapes import LLAMA_20M, LLAMA_TINY, QWEN25_05B, SMOLLM2_135M, fast_dtype, random
from train_update import Case

PROMPT, SAMPLES, ROUNDS = 48, 8, 2
TRAINER = ("process", "weights", "gradients", "optimizer", "copies", "activations", "scores")
ENGINE = ("process", "engine weights", "KV cache", "engine work")
CONFIGS = {"SmolLM2-135M": SMOLLM2_135M, "Qwen2.5-0.5B": QWEN25_05B, "20M": LLAMA_20M, "tiny": LLAMA_TINY}


@dataclass(frozen=True)
class Played:
    """One case: a part of a step, by a model."""

    part: str
    """update or decode."""
    model: str
    prompts: int
    length: int
    """Tokens of each answer."""
    micro: int = 0
    gradient_checkpointing: bool = False
    max_num_seqs: int = 256
    kv_cache_gb: float | None = None

    @property
    def name(self) -> str:
        if self.part == "decode":
            return f"{self.model}, decoding {self.prompts * SAMPLES} x {self.length}, {self.max_num_seqs} at a time"
        again = ", made again" if self.gradient_checkpointing else ""
        return f"{self.model}, update of {self.prompts * SAMPLES} x {self.length}, {self.micro} at a time{again}"

    @property
    def config(self) -> PreTrainedConfig:
        return CONFIGS[self.model]


GPU = [
    *(Played("update", "SmolLM2-135M", 64, 256, micro) for micro in (4096, 16384, 65536)),
    Played("update", "SmolLM2-135M", 8, 1024, 16384, gradient_checkpointing=True),
    *(Played("update", "Qwen2.5-0.5B", 64, 256, micro) for micro in (4096, 16384)),
    Played("update", "Qwen2.5-0.5B", 16, 128, 32768),
    Played("update", "Qwen2.5-0.5B", 8, 1024, 16384, gradient_checkpointing=True),
    *(
        Played("decode", model, 64, 256, max_num_seqs=slots, kv_cache_gb=8)
        for model in list(CONFIGS)[:2]
        for slots in (64, 512)
    ),
    Played("decode", "Qwen2.5-0.5B", 64, 1024, max_num_seqs=512, kv_cache_gb=16),
]
CPU = [
    *(Played("update", "20M", 8, 64, micro) for micro in (512, 2048)),
    Played("update", "20M", 8, 64, 2048, gradient_checkpointing=True),
    *(Played("decode", "20M", 8, 64, max_num_seqs=slots) for slots in (16, 64)),
]
TINY = [Played("update", "tiny", 2, 8, 64), Played("decode", "tiny", 2, 8, max_num_seqs=16)]


def main() -> None:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="sizes to try it with, not to measure")
    parser.add_argument("--no-run", action="store_true", help="without the short run")
    parser.add_argument("--recorded", action="store_true", help="compare plans with the recorded runs of docs/results")
    parser.add_argument("--play", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.recorded:
        print("\n".join([*table([compare(each) for each in RUNS]), "", *figures_table(TOLERANCE)]))
        return
    gpu = torch.cuda.is_available()
    cases = TINY if options.tiny else GPU if gpu else CPU
    if options.play is not None:
        print(json.dumps(play(cases[options.play])))
        return
    here, rows = this_machine(), list[Row]()
    print(here, file=sys.stderr, flush=True)
    for number, case in enumerate(cases):
        try:
            found = play(case) if gpu else _apart(number, tiny=options.tiny)
        except (RuntimeError, subprocess.CalledProcessError) as error:  # one case that fails should not cost the others
            print(f"{case.name}: {error}", file=sys.stderr, flush=True)
            continue
        rows += beside(case, found, here)
        print(f"{case.name}: {found}", file=sys.stderr, flush=True)
    if not options.no_run:
        rows += short_run(here, steps=2 if options.tiny else 6)
    report("plan", rows, options.json)


def _apart(number: int, *, tiny: bool) -> dict[str, float]:
    """In a process of its own, so that its peak is its own."""
    command = [sys.executable, __file__, "--play", str(number), *(["--tiny"] if tiny else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def play(case: Played) -> dict[str, float]:
    """Seconds, of the median round, and bytes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.enable_cudnn_sdp(False)  # as in a run
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    loaded = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    prepare = _update if case.part == "update" else _decode
    once, end = prepare(case, device)
    seconds, clock = [], []
    for _ in range(ROUNDS + 1):
        _settle(device)
        spent, started = time.process_time(), time.perf_counter()
        once()
        _settle(device)
        clock.append(time.perf_counter() - started)
        spent = (time.process_time() - spent) / torch.get_num_threads()
        seconds.append(clock[-1] if device == "cuda" else spent)
    end()
    if device == "cuda":
        peak, kept = torch.cuda.max_memory_allocated() - before, torch.cuda.max_memory_reserved()
    else:
        peak = kept = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": statistics.median(seconds[1:]),
        "first": seconds[0],
        "clock": statistics.median(clock[1:]),
        "bytes": peak,
        "reserved": kept,
        "loaded": 0 if device == "cuda" else loaded,
    }


def _update(case: Played, device: str) -> tuple[Callable[[], object], Callable[[], object]]:
    drawn = Case("", case.config, case.prompts, SAMPLES, (PROMPT, PROMPT), lambda _: case.length)
    groups, compute = drawn.groups(), fast_dtype(device) if device == "cuda" else torch.float32
    trainer = TorchTrainer(
        random(case.config, device),
        None,
        None,  # type: ignore[arg-type]  # wanted for saving only
        GrpoConfig().make(max_tokens=10**5),
        WeightVersions(compute),
        settings(case).train,
        total_updates=100,
        max_tokens=10**5,
        temperature=1.0,
        compute=compute,
    )

    async def update() -> None:
        await trainer.forward_backward(groups)
        await trainer.optim_step()

    return lambda: asyncio.run(update()), lambda: None


def _decode(case: Played, device: str) -> tuple[Callable[[], object], Callable[[], object]]:
    model = random(case.config, device).to(torch.bfloat16 if device == "cuda" else torch.float32)
    model.generation_config.eos_token_id = None
    tokenizer = AutoTokenizer.from_pretrained(models.resolve("dojang-tiny"))
    engine = TorchEngine(
        model, tokenizer, WeightVersions(model.dtype), max_num_seqs=case.max_num_seqs, kv_cache_gb=case.kv_cache_gb
    )
    engine._scheduler._stop_criteria.end_tokens = frozenset()  # lengths are given
    draw = Random(0)
    prompts = [[draw.randrange(5, case.config.vocab_size) for _ in range(PROMPT)] for _ in range(case.prompts)]

    async def whole() -> None:
        asks = [
            engine.generate(prompt, SAMPLES, Sampling(1.0, case.length, prompt_index=at))
            for at, prompt in enumerate(prompts)
        ]
        await asyncio.gather(*asks)

    return lambda: asyncio.run(whole()), lambda: asyncio.run(engine.close())


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def settings(case: Played) -> RunConfig:
    """A recipe that asks for such an update, or for such answers."""
    asked = [
        f"rollout.prompts_per_step={case.prompts}",
        f"rollout.group_size={SAMPLES}",
        f"rollout.max_tokens={case.length}",
    ]
    asked += [
        f"rollout.engine.max_num_seqs={case.max_num_seqs}",
        f"train.gradient_checkpointing={str(case.gradient_checkpointing).lower()}",
        "train.lr=1e-6",
    ]
    asked += [f"train.max_tokens_per_microbatch={case.micro}"] if case.micro else []
    asked += [f"rollout.engine.kv_cache_gb={case.kv_cache_gb}"] if case.kv_cache_gb else []
    return recipe.load("quickstart", asked)


def beside(case: Played, found: dict[str, float], here: Instance) -> Iterator[Row]:
    """Seconds and bytes, predicted and measured."""
    shape = shape_of(case.config.to_dict())
    lengths = Lengths(PROMPT, PROMPT, case.length, case.length)
    planned = estimate(Subject(settings(case), {"policy": shape}, {"policy": lengths}), here, ranks=1)
    notes = f"first round {found['first']:.4g} s, clock {found['clock']:.4g} s, reserved {found['reserved']:.4g} bytes"
    seconds = _update_s(planned, here, shape, case) if case.part == "update" else planned.times.generate
    yield _row(f"{case.name}, seconds", seconds, found["seconds"], "s", notes)
    if case.part == "decode":
        tokens = case.prompts * SAMPLES * case.length
        yield _row(f"{case.name}, speed", tokens / seconds, tokens / found["seconds"], "tokens/s", notes)
    names = TRAINER if case.part == "update" else ENGINE
    parts = {name: size for name, size in planned.needs.parts.items() if name in names}
    parts["process"] = int(found["loaded"])  # a run loads more than this does
    if case.part == "decode":  # what the engine has copied is still there
        parts["model"] = (2 if here.gpu else 4) * shape.parameters
    said = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in parts.items())
    yield _row(f"{case.name}, memory", sum(parts.values()) / 2**20, found["bytes"] / 2**20, "MiB", f"{notes}; {said}")


def _update_s(planned: Estimate, here: Instance, shape: Shape, case: Played) -> float:
    machine = Machine(here, 2 if here.gpu else 4)
    subject = Subject(settings(case), {"policy": shape}, dict(planned.work.lengths))
    player = subject.planned_models()["policy"]
    learning = update_s(machine, player, planned.work, "policy", planned.layout)
    return learning + optimizer_s(machine, player, shape.parameters, planned.layout)


def short_run(here: Instance, steps: int) -> Iterator[Row]:
    """Some steps of the quickstart, the first left out: it warms up."""
    config = recipe.load("quickstart", [f"steps={steps}"])
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dojang", "train", "quickstart", f"steps={steps}", "eval.problems=8"]
        started = subprocess.Popen([*command, "--run-dir", f"{folder}/run"], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        if started.returncode:
            print(f"the short run ended with {started.returncode}", file=sys.stderr)
            return
        told = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    timed = [each for each in told if "timing_s/step" in each][1:]
    length = round(statistics.fmean(each["response_length/mean"] for each in timed))
    shape = shape_of(json.loads((Path(models.resolve("dojang-tiny")) / "config.json").read_text()))
    lengths = replace(Lengths(10, 10, 32, 32), answer=length)
    whole = estimate(Subject(config, {"policy": shape}, {"policy": lengths}), here, ranks=1)
    if here.gpu is None:
        yield _row("quickstart, memory", whole.needs.peak / 2**20, used.ru_maxrss / 1024, "MiB", "of the process")
    planned = whole.times
    for part, seconds in (("rollout", planned.rollout), ("update", planned.update), ("step", planned.step)):
        rounds = [each.get(f"timing_s/{part}", 0.0) for each in timed]
        measured = statistics.median(rounds)
        notes = f"answers of {length} tokens; rounds {' '.join(f'{each:.3g}' for each in rounds)}"
        yield _row(f"quickstart, {part}", seconds, measured, "s", notes)


def _row(case: str, planned: float, measured: float, unit: str, notes: str) -> Row:
    ratio = planned / measured if measured else None
    error = "" if ratio is None else f"{ratio - 1:+.0%}; "
    return Row(case, "planned", "measured", planned, measured, unit, ratio, error + notes)


if __name__ == "__main__":
    main()
