# SPDX-License-Identifier: MIT
"""Charts as SVG, which needs no package, and as PNG by matplotlib, where it is installed.

A value may have an interval, which is drawn as a line. Values that are far apart share a
logarithmic scale, and are then dots: a bar would need a zero.
"""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from rouse.text import printable

COLOURS = ("#3b6ea5", "#d1495b", "#6b8f71", "#b8860b", "#7d6b91", "#4f9da6", "#8c564b")
WIDTH, LABELS, NUMBERS = 900.0, 300.0, 190.0
ROW, HEAD, LEGEND = 24.0, 34.0, 24.0
CURVE_HEIGHT, MARGIN = 320.0, 80.0
FAR_APART = 50.0  # times
LEAST = 1e-12  # smaller values are drawn as 0
PX = 1 / 96  # inches per CSS pixel
NAMESPACE = "http://www.w3.org/2000/svg"


@dataclass(frozen=True)
class Value:
    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        text = number(self.middle)
        if (self.low, self.high) != (self.middle, self.middle):
            text += f" [{number(self.low)}, {number(self.high)}]"
        return text


@dataclass(frozen=True)
class Bar:
    label: str
    group: str  # bars of a group have one colour
    value: Value | None


@dataclass(frozen=True)
class Bars:
    title: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Curves:
    """Lines over a logarithmic axis: for each name its points, by x."""

    title: str
    x_title: str
    lines: Mapping[str, Mapping[float, Value]]


Chart = Bars | Curves


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Scale:
    """Maps values to a range of pixels."""

    def __init__(self, values: Sequence[float], begin: float, end: float, from_zero: bool) -> None:
        above = [value for value in values if value > LEAST]
        self.begin, self.end = begin, end
        self.most = max(above, default=1.0)
        least = min(above, default=1.0)
        is_far = len(above) == len(values) and self.most / least > FAR_APART
        self.is_log = is_far or not from_zero
        if self.is_log:
            # Whole powers, so that the ends of the axis are round.
            self.least = 10.0 ** math.floor(math.log10(least)) if from_zero else least
        else:
            self.least = 0.0

    def at(self, value: float) -> float:
        if not self.is_log:
            share = value / self.most
        elif self.most == self.least:
            share = 0.5
        else:
            share = math.log(max(value, self.least) / self.least)
            share /= math.log(self.most / self.least)
        return self.begin + share * (self.end - self.begin)

    def marks(self) -> list[float]:
        if not self.is_log:
            step = 10.0 ** math.floor(math.log10(self.most))
            step = next(s for s in (step / 5, step / 2, step, 2 * step) if self.most / s <= 6)
            return [i * step for i in range(int(self.most / step) + 1)]
        first, last = math.floor(math.log10(self.least)), math.floor(math.log10(self.most))
        return [10.0**power for power in range(first, last + 1)]


def attributes(**given: object) -> dict[str, str]:
    return {
        name.rstrip("_").replace("_", "-"): f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in given.items()
    }


def put(parent: ElementTree.Element, name: str, text: str = "", **given: object) -> None:
    ElementTree.SubElement(parent, name, attributes(**given)).text = printable(text) or None


def values_of(values: Sequence[Value | None]) -> list[float]:
    return [end for value in values if value for end in (value.low, value.middle, value.high)]


def canvas(title: str, height: float) -> ElementTree.Element:
    given = attributes(
        xmlns=NAMESPACE,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        width=WIDTH,
        height=height,
        role="img",
        font_family="sans-serif",
        font_size=12,
        fill="currentColor",
    )
    root = ElementTree.Element("svg", given)
    put(root, "title", title)
    put(root, "text", title, x=0, y=16, font_weight="bold", font_size=14)
    return root


def legend(root: ElementTree.Element, names: Sequence[str], top: float) -> None:
    width = WIDTH / max(len(names), 4)
    for place, name in enumerate(names):
        colour = COLOURS[place % len(COLOURS)]
        put(root, "rect", x=place * width, y=top, width=10, height=10, fill=colour)
        put(root, "text", name, x=place * width + 16, y=top + 10)


def whole(root: ElementTree.Element) -> str:
    return ElementTree.tostring(root, "unicode") + "\n"


def svg_bars(chart: Bars) -> str:
    groups = list(dict.fromkeys(bar.group for bar in chart.bars))
    height = HEAD + ROW * len(chart.bars) + LEGEND
    scale = Scale(values_of([bar.value for bar in chart.bars]), LABELS, WIDTH - NUMBERS, True)
    root = canvas(chart.title + (", logarithmic scale" if scale.is_log else ""), height)
    for row, bar in enumerate(chart.bars):
        colour = COLOURS[groups.index(bar.group) % len(COLOURS)]
        middle = HEAD + ROW * (row + 0.5)
        put(root, "text", bar.label, x=LABELS - 8, y=middle + 4, text_anchor="end")
        if bar.value is None:
            put(root, "text", "no figure", x=LABELS, y=middle + 4, opacity=0.6)
            continue
        end, high = scale.at(bar.value.middle), scale.at(bar.value.high)
        if scale.is_log:
            put(root, "circle", cx=end, cy=middle, r=5, fill=colour)
        else:
            put(
                root,
                "rect",
                x=LABELS,
                y=middle - 7,
                width=max(end - LABELS, 1.0),
                height=14,
                fill=colour,
            )
        interval(root, scale.at(bar.value.low), high, middle)
        put(root, "text", str(bar.value), x=max(end, high) + 8, y=middle + 4)
    legend(root, groups, height - 12)
    return whole(root)


def interval(root: ElementTree.Element, low: float, high: float, y: float) -> None:
    if low != high:
        put(root, "path", d=f"M{low:g} {y:g}H{high:g}", stroke="currentColor", stroke_width=1.5)


def svg_curves(chart: Curves) -> str:
    every = [value for line in chart.lines.values() for value in line.values()]
    xs = sorted({x for line in chart.lines.values() for x in line})
    bottom = HEAD + CURVE_HEIGHT
    rows = math.ceil(len(chart.lines) / 4)
    height = bottom + 3 * LEGEND + rows * LEGEND
    across = Scale(xs, MARGIN, WIDTH - 20, False)
    up = Scale(values_of(every), bottom, HEAD, True)
    root = canvas(chart.title + (", logarithmic scale" if up.is_log else ""), height)
    for mark in up.marks():
        y = up.at(mark)
        line = f"M{MARGIN:g} {y:g}H{WIDTH - 20:g}"
        put(root, "path", d=line, stroke="currentColor", opacity=0.15)
        put(root, "text", number(mark), x=MARGIN - 8, y=y + 4, text_anchor="end")
    for x in xs:
        put(root, "text", number(x), x=across.at(x), y=bottom + 18, text_anchor="middle")
    put(root, "text", chart.x_title, x=WIDTH / 2, y=bottom + 38, text_anchor="middle")
    for place, (name, points) in enumerate(chart.lines.items()):
        colour = COLOURS[place % len(COLOURS)]
        ends = [(across.at(x), value) for x, value in sorted(points.items())]
        path = " ".join(f"{x:g},{up.at(value.middle):g}" for x, value in ends)
        put(root, "polyline", points=path, fill="none", stroke=colour, stroke_width=2)
        for x, value in ends:
            put(root, "circle", cx=x, cy=up.at(value.middle), r=3, fill=colour)
            if value.low != value.high:
                d = f"M{x:g} {up.at(value.low):g}V{up.at(value.high):g}"
                put(root, "path", d=d, stroke=colour, stroke_width=1.5)
        top = bottom + 2.5 * LEGEND + place // 4 * LEGEND
        left = place % 4 * WIDTH / 4
        put(root, "rect", x=left, y=top, width=10, height=10, fill=colour)
        put(root, "text", name, x=left + 16, y=top + 10)
    return whole(root)


def svg(chart: Chart) -> str:
    return svg_bars(chart) if isinstance(chart, Bars) else svg_curves(chart)


def has_png() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def png(chart: Chart) -> bytes:
    """Draw the chart by matplotlib, which must be installed."""
    from matplotlib.figure import Figure

    rows = len(chart.bars) if isinstance(chart, Bars) else 14
    figure = Figure(figsize=(WIDTH * PX, (90 + ROW * rows) * PX), layout="constrained")
    axes: Any = figure.subplots()
    axes.set_title(chart.title, loc="left")
    if isinstance(chart, Bars):
        png_bars(axes, chart)
    else:
        png_curves(axes, chart)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=96)
    return file.getvalue()


def errors(values: Sequence[Value]) -> list[list[float]]:
    return [[v.middle - v.low for v in values], [v.high - v.middle for v in values]]


def png_bars(axes: Any, chart: Bars) -> None:
    scale = Scale(values_of([bar.value for bar in chart.bars]), 0, 1, True)
    groups = list(dict.fromkeys(bar.group for bar in chart.bars))
    for group, colour in zip(groups, COLOURS, strict=False):
        shown = [
            (row, bar.value)
            for row, bar in enumerate(chart.bars)
            if bar.group == group and bar.value
        ]
        places, values = [row for row, _ in shown], [value for _, value in shown]
        middles = [value.middle for value in values]
        if scale.is_log:
            given = {"xerr": errors(values), "fmt": "o", "color": colour, "label": group}
            axes.errorbar(middles, places, **given)
        else:
            axes.barh(places, middles, 0.6, xerr=errors(values), color=colour, label=group)
    axes.set_yticks(range(len(chart.bars)), [bar.label for bar in chart.bars])
    axes.set_xscale("log" if scale.is_log else "linear")
    axes.invert_yaxis()
    axes.legend()


def png_curves(axes: Any, chart: Curves) -> None:
    every = [value for line in chart.lines.values() for value in line.values()]
    for name, points in chart.lines.items():
        values = [points[x] for x in sorted(points)]
        axes.errorbar(
            sorted(points), [v.middle for v in values], errors(values), label=name, marker="o"
        )
    axes.set_xscale("log")
    axes.set_yscale("log" if Scale(values_of(every), 0, 1, True).is_log else "linear")
    axes.set_xlabel(chart.x_title)
    axes.legend()
