"""Asynchronous training beside taking turns: loop.mode=sync, overlap and stream at equal samples.

First the loop with stand-ins for engine and trainer that only take time: what a mode gains without contention. Then
with real parts, answers of geometric lengths and a slow judge: what it gains on this machine, beside the bound by the
formula of `dojang plan`, and what held it back. The bound holds for overlap; stream does not wait for the longest
answer of a batch and may exceed it.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence

import async_real
from async_stand_ins import CASES, MODES, Case, measure
from dojang.planning.overlap import overlap_gain
from machine import Row, arguments, report


def stand_ins(cases: Sequence[Case], modes: Sequence[str], steps: int) -> Iterator[Row]:
    asyncio.run(measure(cases[0], "stream", 1))  # imports
    for case in cases:
        sync = asyncio.run(measure(case, "sync", steps))
        bound = overlap_gain(sync.rollout_s, sync.update_s)
        for mode in modes:
            found = asyncio.run(measure(case, mode, steps))
            idle = ", ".join(f"{who} {share:.0%}" for who, share in found.idle.items())
            notes = f"bound {bound:.2f}x; idle: {idle}; largest staleness {found.staleness:g}, {found.samples} samples"
            name = f"stand-ins, {case.name}"
            yield Row(name, mode, "sync", found.step_s, sync.step_s, "s/step", sync.step_s / found.step_s, notes)
            longest = found.step_s / found.longest_s
            said = f"{longest:.2f} x max(rollout, update)"
            ratio = found.longest_s / found.step_s
            yield Row(name, mode, "max(rollout, update)", found.step_s, found.longest_s, "s/step", ratio, said)


def real_parts(setting: async_real.Setting, modes: Sequence[str], rounds: int) -> Iterator[Row]:
    found: dict[str, list[async_real.Timed]] = {mode: [] for mode in ("sync", *modes)}
    for _ in range(rounds):
        for mode, times in found.items():
            times.append(async_real.measure(setting, mode))
            print(f"{mode}: {times[-1]}", file=sys.stderr, flush=True)
    sync = async_real.middle(found["sync"])
    planned = async_real.planned_gain(setting)
    name = f"{setting.model}, answers of {setting.mean_length} tokens, judge {setting.judge_s:g} s, lag {setting.lag}"
    for mode in modes:
        times = async_real.middle(found[mode])
        notes = (
            f"bound {sync.gain:.2f}x (rollout {sync.rollout_s:.3g} s, update {sync.update_s:.3g} s in sync); plan, "
            f"without the judge: {planned:.2f}x; held back by: {async_real.held_back(sync, times)}; idle: "
            + ", ".join(f"{who} {share:.0%}" for who, share in times.idle.items())
            + f"; weights loaded in {times.load_s:.3g} s a step, {times.pause_s:.3g} s of them without decoding"
        )
        yield Row(name, mode, "sync", times.step_s, sync.step_s, "s/step", sync.step_s / times.step_s, notes)


def main() -> None:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--modes", default=",".join(MODES[1:]), help="modes to compare with sync")
    parser.add_argument("--stand-in-steps", type=int, default=24, help="steps with stand-ins; 0 leaves them out")
    parser.add_argument("--steps", type=int, default=10, help="steps with real parts; 0 leaves them out")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each mode with real parts; the median counts")
    parser.add_argument("--model", default="dojang-tiny")
    parser.add_argument("--length", type=int, default=48, help="mean tokens of an answer")
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--judge", type=float, default=0.2, help="mean seconds of a verdict")
    parser.add_argument("--lag", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=8, help="prompts per step")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the runs with real parts")
    options = parser.parse_intermixed_args()
    modes = options.modes.split(",")
    if unknown := set(modes) - set(MODES):
        parser.error(f"unknown mode {min(unknown)}; known: {', '.join(MODES)}")
    rows = list(stand_ins(CASES, modes, options.stand_in_steps)) if options.stand_in_steps else []
    if options.steps:
        setting = async_real.Setting(
            options.model,
            options.steps,
            options.length,
            options.max_tokens,
            options.judge,
            options.prompts,
            options.group_size,
            options.lag,
            options.overrides,
        )
        rows += real_parts(setting, modes, options.rounds)
    report("async", rows, options.json)


if __name__ == "__main__":
    main()
