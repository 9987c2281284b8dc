"""Line charts as SVG files: readable on a white and on a dark page, without a program that draws them."""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, isfinite, log10
from typing import NamedTuple

__all__ = ["Line", "Panel", "draw"]

COLOURS = ("#3b82c4", "#e07b39", "#3a9e74", "#b65fb3", "#c9a227", "#d1495b", "#6c757d", "#2aa5a0", "#8c6d46")
INK, GRID = "#8a9099", "#8a909940"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 230, 54, 12, 26, 40
PER_ROW = 2
LEGEND_STEP = 16


class Line(NamedTuple):
    """A named line; `of` gives a dashed line the colour of another one: the paper's numbers."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    of: str = ""


class Panel(NamedTuple):
    """One set of axes."""

    title: str
    lines: Sequence[Line]


class _Axis(NamedTuple):
    low: float
    high: float
    log: bool
    start: float  # in the picture
    end: float

    def at(self, value: float) -> float:
        low, high, value = (log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        if self.log:
            powers = range(ceil(log10(self.low)), floor(log10(self.high)) + 1)
            every = max(1, len(powers) // 4)
            return [10.0**power for power in powers][::every] or [self.low, self.high]
        rough = (self.high - self.low) / 4
        unit = 10 ** floor(log10(rough))
        step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough)
        first = ceil(self.low / step - 1e-9)
        return [step * n for n in range(first, floor(self.high / step + 1e-9) + 1)]


def draw(panels: Sequence[Panel], x_title: str, y_title: str, *, log_x: bool = False, log_y: bool = False) -> str:
    """The picture of all panels, with one legend below."""
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines if not line.of))
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    columns = min(PER_ROW, len(panels))
    rows = ceil(len(panels) / columns)
    width, bottom = columns * WIDTH, rows * HEIGHT
    parts = []
    for index, panel in enumerate(panels):
        x, y = index % columns * WIDTH, index // columns * HEIGHT
        inside = _panel(panel, colours, x_title, y_title, log_x, log_y)
        parts.append(f'<g transform="translate({x},{y})">{inside}</g>')
    legend, height = _legend(colours, width, bottom, any(line.of for panel in panels for line in panel.lines))
    style = f'font-family="system-ui, sans-serif" font-size="11" fill="{INK}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" {style}>'
    return head + "".join(parts) + legend + "</svg>\n"


def _panel(
    panel: Panel, colours: dict[str, str], x_title: str, y_title: str, log_x: bool, log_y: bool
) -> str:  # fmt: skip
    lines = [Line(one.name, *_finite(one, log_x, log_y), one.of) for one in panel.lines]
    x = _axis([v for one in lines for v in one.x], log_x, LEFT, WIDTH - RIGHT)
    y = _axis([v for one in lines for v in one.y], log_y, HEIGHT - BOTTOM, TOP)
    parts = [f'<text x="{LEFT}" y="15" font-weight="600">{escape(panel.title)}</text>']
    for tick in y.ticks():
        at = f"{y.at(tick):.1f}"
        parts.append(f'<path d="M{LEFT} {at}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{float(at) + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    for tick in x.ticks():
        parts.append(f'<text x="{x.at(tick):.1f}" y="{HEIGHT - 24}" text-anchor="middle">{_number(tick)}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_title)}</text>')
    middle = (HEIGHT - BOTTOM + TOP) / 2
    parts.append(
        f'<text transform="translate(12,{middle:.0f}) rotate(-90)" text-anchor="middle">{escape(y_title)}</text>'
    )
    for one in lines:
        points = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in zip(one.x, one.y, strict=True))
        dashed = ' stroke-dasharray="4 3"' if one.of else ""
        colour = colours[one.of or one.name]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"{dashed}/>')
        if len(one.x) <= 12:
            parts += [
                f'<circle cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="2.4" fill="{colour}"/>'
                for a, b in zip(one.x, one.y, strict=True)
            ]
    return "".join(parts)


def _finite(line: Line, log_x: bool, log_y: bool) -> tuple[list[float], list[float]]:
    kept = [
        (a, b)
        for a, b in zip(line.x, line.y, strict=True)
        if isfinite(a) and isfinite(b) and (a > 0 or not log_x) and (b > 0 or not log_y)
    ]
    return [a for a, _ in kept], [b for _, b in kept]


def _axis(values: list[float], log: bool, start: float, end: float) -> _Axis:
    low, high = (min(values), max(values)) if values else (0.1, 1.0)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    return _Axis(low, high, log, start, end)


def _legend(colours: dict[str, str], width: int, top: int, of_paper: bool) -> tuple[str, int]:
    entries = [(name, colour, "") for name, colour in colours.items()]
    if of_paper:
        entries.append(("dashed: the paper", INK, ' stroke-dasharray="4 3"'))
    parts: list[str] = []
    x, y = float(LEFT), top + 10
    for name, colour, dashed in entries:
        needed = 34 + 6.2 * len(name)
        if x > LEFT and x + needed > width:
            x, y = float(LEFT), y + LEGEND_STEP
        parts.append(f'<path d="M{x:.0f} {y - 4}h18" stroke="{colour}" stroke-width="2.4"{dashed}/>')
        parts.append(f'<text x="{x + 23:.0f}" y="{y}">{escape(name)}</text>')
        x += needed
    return "".join(parts), y + 10


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.6g}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
