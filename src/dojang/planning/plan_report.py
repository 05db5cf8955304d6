"""Formats a plan as text and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dojang.planning.advice import Finding, Knob
from dojang.planning.estimate import Estimate
from dojang.planning.instances import PRICES_NOTED
from dojang.planning.kv_cache_memory import GIB
from dojang.planning.memory_use import Needs
from dojang.planning.shapes import Shape

__all__ = ["Report"]

_ROW = "  {:<15} {:<10} {:>9} {:>5} {:>9} {:>9} {:>10} {:>9}"


@dataclass
class Report:
    """Findings and estimates of a recipe."""

    recipe: str
    findings: list[Finding]
    shapes: Mapping[str, tuple[Shape | None, str]]
    chosen: Estimate | None = None
    knobs: Sequence[Knob] = ()
    together: Knob | None = None
    """Combination of settings that suffices if none does alone."""
    others: Sequence[Estimate] = field(default_factory=list)

    @property
    def code(self) -> int:
        """Exit code: that of the first failure."""
        return next((each.code or 1 for each in self.findings if each.level == "failed"), 0)

    def as_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "ok": self.code == 0,
            "findings": [asdict(each) for each in self.findings],
            "models": {
                role: {"shape": None if shape is None else asdict(shape), "parameters": _parameters(shape), "from": by}
                for role, (shape, by) in self.shapes.items()
            },
            "estimate": None if self.chosen is None else _estimate(self.chosen),
            "knobs": [asdict(each) for each in self.knobs],
            "together": None if self.together is None else asdict(self.together),
            "instances": [_estimate(each) for each in self.others],
            "prices": PRICES_NOTED,
        }

    def lines(self) -> Iterator[str]:
        """Yields the report as lines of text."""
        yield f"plan of {self.recipe}"
        for role, (shape, by) in self.shapes.items():
            yield f"  {role:<10} {_shape_text(shape)} ({by})"
        yield from (f"  {each.level:<8} {each.about}: {each.said}" for each in self.findings)
        if self.chosen is None:
            return
        yield from _memory(self.chosen)
        if self.knobs:
            yield "  settings that save memory:"
            yield from (
                f"    {each.setting:<32} {each.saves / GIB:6.2f} GiB{'   and then it fits' if each.fits else ''}"
                for each in self.knobs
            )
        if self.together is not None:
            yield f"    together, so that it fits: {self.together.setting}  ({self.together.saves / GIB:.2f} GiB)"
        yield from _time(self.chosen)
        if self.others:
            yield f"elsewhere ({PRICES_NOTED}; check prices, --price takes another):"
            yield _ROW.format("instance", "GPUs", "GiB", "fits", "step", "tokens/s", "hours", "USD").rstrip()
            yield from map(_line, self.others)


def _parameters(shape: Shape | None) -> int | None:
    return None if shape is None else shape.parameters


def _shape_text(shape: Shape | None) -> str:
    if shape is None:
        return "unknown shape: memory and time cannot be estimated"
    return f"{shape.parameters / 1e6:,.4g}M parameters, {shape.layers} layers, context {shape.context:,}"


def _memory(found: Estimate) -> Iterator[str]:
    layout, gpu = found.layout, found.layout.gpu
    where = f"on {layout.nodes} x {layout.instance.name}, {found.capacity / GIB:.4g} GiB"
    if layout.on_ray:
        where += f" a {'GPU' if gpu else 'machine'}"
        device = f"each of {layout.trainers} trainers"
    else:
        device = f"each of {layout.ranks} x {gpu.name}" if gpu else "the process"
    yield f"memory of {device} {where}:"
    yield from _parts(found.needs)
    if found.engine is not None:
        yield f"memory of each of {layout.servers} engines {where}:"
        yield from _parts(found.engine)
        if not gpu:
            yield f"memory of all of them, on each machine: {found.peak / GIB:.3f} GiB"
    if found.host:
        yield f"    {found.host / GIB:.3g} GiB of host memory"


def _parts(needs: Needs) -> Iterator[str]:
    full = set(needs.phases[needs.fullest])
    for name, size in needs.parts.items():
        yield f"  {'*' if name in full else ' '} {name:<20} {size / GIB:8.3f} GiB"
    yield f"  = {'peak, in ' + needs.fullest:<20} {needs.peak / GIB:8.3f} GiB   (parts of the peak have a *)"
    if needs.cache is not None:
        yield f"    {needs.cache.slots} sequences at a time, of {needs.cache.length} tokens on average"


def _time(found: Estimate) -> Iterator[str]:
    times, lengths = found.times, found.work.lengths
    each = ", ".join(f"{role} {own.answer}" for role, own in lengths.items())
    cost = _usd(times.usd) if times.usd is None else f"{_usd(times.usd)} USD"
    teacher = f"teacher {_s(times.teacher)}, " if times.teacher else ""
    yield f"time of a step, with completions of {each} tokens:"
    yield (
        f"  rollout {_s(times.rollout)} (generate {_s(times.generate)}, judge {_s(times.judge)}), "
        f"{teacher}update {_s(times.update)}, publish {_s(times.publish)}: {_s(times.step)}"
    )
    if times.samples:
        yield f"  {_overlap(found)}"
    if times.overlaps and times.shared:
        yield f"  in this run's loop.mode, on one device: {_s(times.run_step)}"
    yield (
        f"  {times.answered / times.generate:,.0f} tokens/s while generating; {times.steps:,} steps and "
        f"{times.evaluations} evaluations: {times.hours:.3g} hours, {cost}"
    )


def _overlap(found: Estimate) -> str:
    """Describes the gain of sampling the next batch during the update."""
    times = found.times
    seconds = max(times.rollout, times.train)
    said = f"overlapped (loop.mode=overlap), at most {times.overlap_gain:.2f}x as fast: {_s(seconds)}, "
    said += f"limited by the {times.bottleneck} ({seconds / times.step:.0%} of the step)"
    return f"{said}; less where both share processors, as here" if found.shared else said


def _line(found: Estimate) -> str:
    layout, times = found.layout, found.times
    gpus = f"{layout.instance.gpus} {layout.gpu.name}" if layout.gpu else "none"
    return _ROW.format(
        layout.instance.name,
        gpus,
        f"{found.peak / GIB:.1f}",
        found.fit,
        _s(times.step),
        f"{times.answered / times.generate:,.0f}",
        f"{times.hours:.3g}",
        _usd(times.usd),
    )


def _s(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:.3g} min"


def _usd(usd: float | None) -> str:
    return "no price" if usd is None else f"{usd:,.2f}"


def _estimate(found: Estimate) -> dict[str, Any]:
    layout, needs = found.layout, found.needs
    return {
        "instance": layout.instance.name,
        "nodes": layout.nodes,
        "ranks": layout.ranks,
        "servers": layout.servers,
        "gpu": layout.gpu.name if layout.gpu else None,
        "usd_an_hour": layout.usd,
        "fits": found.fit,
        "capacity_bytes": found.capacity,
        "peak_bytes": found.peak,
        "peak_during": found.fullest,
        "bytes": dict(needs.parts),
        "phases": {name: needs.during(name) for name in needs.phases},
        "engine_bytes": None if found.engine is None else dict(found.engine.parts),
        "host_bytes": found.host,
        "slots": found.cache.slots if found.cache else None,
        "time": found.times.as_json(),
    }
