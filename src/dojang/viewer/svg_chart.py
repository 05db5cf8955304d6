"""Line charts as SVG without JavaScript, in the look of static/chart.js."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dojang.viewer.html_text import Html, element

__all__ = ["Line", "draw_lines"]

WIDTH, HEIGHT = 560, 190
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 8, 24
STYLES = 8
"""Classes series-0 ... of chart.css."""
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Line:
    """A metric over steps; None is a gap."""

    name: str
    steps: Sequence[int]
    values: Sequence[float | None]

    def points(self) -> list[list[tuple[int, float]]]:
        """Runs of values without a gap."""
        parts: list[list[tuple[int, float]]] = [[]]
        for step, value in zip(self.steps, self.values, strict=True):
            if value is None or not math.isfinite(value):
                parts.append([])
            else:
                parts[-1].append((step, value))
        return [part for part in parts if part]


def draw_lines(lines: Sequence[Line], label: str) -> Html:
    """Returns the lines in one chart, with the first and last step and round values at the axes."""
    points = [point for line in lines for part in line.points() for point in part]
    if not points:
        return element("p", "no values", class_="note")
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    ticks = round_values(min(value for _, value in points), max(value for _, value in points))
    low, high = min(ticks[0], *(value for _, value in points)), max(ticks[-1], *(value for _, value in points))

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ((value - low) / (high - low) if high > low else 0.5)

    grid = [
        [
            element("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=round(y(tick), 1), y2=round(y(tick), 1)),
            element("text", f"{tick:g}", class_="tick", x=LEFT - 7, y=round(y(tick) + 3.5, 1), text_anchor="end"),
        ]
        for tick in ticks
    ]
    names = [
        element("text", str(step), class_="tick", x=round(x(step), 1), y=HEIGHT - 8, text_anchor="middle")
        for step in sorted({first, last})
    ]
    drawn = [
        element("path", class_=f"line series-{place % STYLES}", d=_path(part, x, y))
        if len(part) > 1
        else element(
            "circle", class_=f"mark series-{place % STYLES}", cx=f"{x(part[0][0]):.1f}", cy=f"{y(part[0][1]):.1f}", r=3
        )
        for place, line in enumerate(lines)
        for part in line.points()
    ]
    return element(
        "svg", grid, names, drawn, class_="plot", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label
    )


def round_values(low: float, high: float, wanted: int = 4) -> list[float]:
    """Returns round values that span two bounds."""
    span = high - low
    if not span > 1e-9 * max(abs(low), abs(high)):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / wanted))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= span / wanted * 0.999)
    return [round(place * step, 12) for place in range(math.ceil(low / step), math.floor(high / step) + 1)] or [low]


def _path(part: Sequence[tuple[int, float]], x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{x(step):.1f},{y(value):.1f}" for step, value in part)
