"""A whole GRPO step, generate, reward and update, by dojang and by TRL's GRPOTrainer; on a GPU the update alone.

All take the same model, prompts, rewards, precision and numbers of tokens: 8 prompts of 32 to 64 tokens, 8 samples of
each, of 64 tokens or of geometric lengths (mean 64, at most 256). Each plays in a process of its own, one after the
other, on as many threads: a step to warm up, then the median of some. Peak memory is the process's. Start-up is from
the first import to the first step, without dojang's checks of its configuration, data and agreement, and without TRL's
command line; processes that play nothing else take turns at it, and the median counts. TRL's update is all of a step
that is neither generating nor rewarding: its decoding and padding, too. Beside
seconds on the clock the notes have the processor's, of all threads, which others on the machine disturb less. Models
called random have random weights, on which speed does not depend.

TRL's `generate` is held to the lengths wanted by a criterion of ours, which costs it next to nothing. TRL is not a
dependency of dojang: `pip install trl==1.16.0 datasets` beside it. Where it is missing, the baseline is plain
transformers and torch (train_plain.py). So it is on a GPU, where the update alone is played (train_update.py): rollouts
have a benchmark of their own.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from machine import Row, arguments, report
from train_players import PLAYERS
from train_work import PROMPTS, SAMPLES, Clock, Spent

MINE = "dojang"
Figures = dict[str, tuple[float, float]]
"""Of each part: seconds on the clock and of the processor, or megabytes twice."""


def main() -> None:
    options = _options()
    if options.play:
        print(json.dumps(play(*options.play, options.steps)))
        return
    if options.update or _gpu():
        import train_update

        report("train", train_update.rows(tiny=options.tiny, rounds=options.steps), options.json)
        return
    rows = []
    for model in options.models.split(","):
        players = [MINE, *options.against.split(",")]
        for lengths in options.lengths.split(","):
            found = {who: _played(who, model, lengths, options.steps) for who in players}
            notes = f"median of {options.steps} steps of {PROMPTS} prompts, {SAMPLES} samples each"
            rows += _rows(f"{model}, {lengths} lengths", found, notes)
        rows += _rows(model, _startups(players, model, options.starts), f"median of {options.starts} starts")
    report("train", rows, options.json)


def _options() -> argparse.Namespace:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="random-20m,smollm2-135m-instruct")
    parser.add_argument("--lengths", default="geometric,uniform")
    parser.add_argument("--steps", type=int, default=3, help="played by each, after one to warm up")
    parser.add_argument("--starts", type=int, default=3, help="start-ups of each")
    others = "TRL" if find_spec("trl") else "plain transformers"
    parser.add_argument("--against", default=others, help="TRL, plain transformers, or both with a comma between")
    parser.add_argument("--update", action="store_true", help="the update alone, as on a GPU")
    parser.add_argument("--tiny", action="store_true", help="with --update: sizes to try it with, not to measure")
    parser.add_argument("--play", nargs=3, metavar=("WHO", "MODEL", "LENGTHS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = {*options.against.split(",")} - {*PLAYERS}
    if unknown:
        parser.error(f"--against: nobody here is called {', '.join(sorted(unknown))}; there is {', '.join(PLAYERS)}")
    return options


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def play(who: str, model: str, lengths: str, steps: int) -> Figures:
    """In this process."""
    clock = Clock(steps)
    PLAYERS[who](model, lengths, clock)
    assert clock.startup is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    medians = {name: _median(clock.parts[name][1:]) for name in ("step", "generate", "reward", "update") if steps}
    return {**medians, "peak memory": (peak, peak), "start-up": _median([clock.startup])}


def _median(spent: Sequence[Spent]) -> tuple[float, float]:
    return statistics.median(each.wall for each in spent), statistics.median(each.cpu for each in spent)


def _played(who: str, model: str, lengths: str, steps: int) -> Figures:
    command = [sys.executable, __file__, "--steps", str(steps), "--play", who, model, lengths]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    print(f"{who}, {model}, {lengths}, {steps} steps: {figures}", file=sys.stderr, flush=True)
    start = figures.pop("start-up")
    return figures if steps else {"start-up": start}


def _startups(players: Sequence[str], model: str, starts: int) -> dict[str, Figures]:
    turns = [{who: _played(who, model, "uniform", 0)["start-up"] for who in players} for _ in range(starts)]
    return {who: {"start-up": _median([Spent(*turn[who]) for turn in turns])} for who in players}


def _rows(case: str, found: dict[str, Figures], notes: str) -> list[Row]:
    rows = []
    for other in list(found)[1:]:
        for part, (mine, my_cpu) in found[MINE].items():
            theirs, their_cpu = found[other][part]
            memory = part == "peak memory"
            told = notes if memory else f"{notes}; processor {my_cpu:.3g} s, baseline's {their_cpu:.3g} s"
            unit = "MB" if memory else "s"
            rows.append(Row(f"{case}, {part}", MINE, other, mine, theirs, unit, theirs / mine if mine else None, told))
    return rows


if __name__ == "__main__":
    main()
