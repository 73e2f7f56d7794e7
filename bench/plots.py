# SPDX-License-Identifier: MIT
"""Draw the charts of the README and of the studies with matplotlib, as SVG: bars and ticks.

The same figures give the same bytes with one version of matplotlib, so tests compare the files.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import checkout
from tables.render import number

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyArrowPatch
except ImportError as missing:
    checkout.enter(missing, "rouse[lab]")

PX = 1 / 96  # inches per CSS pixel
COLOURS = ("#3b6ea5", "#d1495b", "#edae49", "#6b8f71", "#7d6b91")
DARK, FAINT, GRID = "#1f2328", "#59636e", "#d8dbe0"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "svg.hashsalt": "rouse",  # the same identifiers in each run
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 9,  # points: 12 pixels
    "text.color": DARK,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.bottom": False,
    "axes.edgecolor": FAINT,
    "xtick.bottom": False,
    "xtick.labelcolor": FAINT,
    "ytick.left": False,
    "ytick.labelcolor": DARK,
    "legend.frameon": False,
    "legend.labelcolor": FAINT,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.1,
    "figure.constrained_layout.h_pad": 0.08,
}


@dataclass
class Panel:
    """One bar per row. A bar of several values is stacked."""

    title: str
    parts: Sequence[str]  # names of the values of a row; a single one is not shown
    rows: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Ticks:
    """One thread at a clock's ticks: the ticks that wake it, and whether each ends its call."""

    title: str
    gaps_ms: Sequence[float]
    woken: Sequence[tuple[int, bool]]


def svg(figure: Figure, title: str) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Title": title, "Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def draw_bars(axes: Axes, panel: Panel) -> None:
    sums = [sum(row) for row in panel.rows]
    left = [0.0] * len(panel.rows)
    for index, (part, colour) in enumerate(zip(panel.parts, COLOURS, strict=False)):
        values = [row[index] for row in panel.rows]
        drawn = axes.barh(range(len(values)), values, 0.58, left, color=colour, label=part)
        for row, bar in enumerate(drawn):
            bar.set_gid(f"bar: {panel.title}, {part}, {row}")
        left = [a + b for a, b in zip(left, values, strict=True)]
    for row, end in enumerate(sums):
        axes.annotate(
            number(end), (end, row), (5, 0), textcoords="offset points", va="center", color=FAINT
        )
    axes.set_xlim(0, 1.3 * (max(sums, default=0) or 1))  # room for the numbers
    axes.set_xticks([])
    axes.margins(y=0.02)
    axes.set_title(panel.title, fontweight="bold", pad=24)
    if len(panel.parts) > 1:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=len(panel.parts),
            borderpad=0.2,
            borderaxespad=0.2,
            columnspacing=0.9,
            handlelength=0.8,
            handletextpad=0.4,
        )


def draw_panels(figure: Figure | SubFigure, labels: Sequence[str], panels: Sequence[Panel]) -> None:
    shown = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, panel in zip(shown, panels, strict=True):
        draw_bars(axes, panel)
    shown[0].set_yticks(range(len(labels)), labels)
    shown[0].invert_yaxis()


def draw_ticks(axes: Axes, shown: Ticks) -> None:
    at = [0.0]
    for gap in shown.gaps_ms:
        at.append(at[-1] + gap)
    axes.plot(at, [0] * len(at), color=FAINT, linewidth=0.8, marker="|", markersize=10)
    began = 0
    for tick, is_over in shown.woken:
        if is_over:
            ends = ((at[began], 0), (at[tick], 0))
            curve = "arc3,rad=-0.4"
            axes.add_patch(
                FancyArrowPatch(
                    *ends, connectionstyle=curve, arrowstyle="-", color=COLOURS[0], linewidth=1.5
                )
            )
            began = tick
        axes.plot(at[tick], 0, "o", color=COLOURS[0 if is_over else 1], markersize=7)
    axes.set_xticks(at, [str(tick) for tick in range(len(at))])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-0.4, 1)
    axes.set_title(shown.title, fontweight="bold")
    kinds = zip(("a wake-up that ends a call", "an early one"), COLOURS, strict=False)
    dots = [Line2D([], [], ls="", marker="o", color=colour, label=name) for name, colour in kinds]
    axes.legend(handles=dots, loc="upper left", bbox_to_anchor=(0, -0.3), ncols=2, handletextpad=0)


def chart(
    title: str, labels: Sequence[str], panels: Sequence[Panel], ticks: Ticks | None = None
) -> str:
    """Panels side by side whose rows have the same labels, below a timeline if there is one."""
    with rc_context(STYLE):
        height, above = 76 + 24 * len(labels), 170 if ticks else 0
        figure = Figure(figsize=(900 * PX, (height + above) * PX))
        if ticks:
            parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(above, height))
            top, below = parts[:, 0]
            draw_ticks(top.subplots(), ticks)
            draw_panels(below, labels, panels)
        else:
            draw_panels(figure, labels, panels)
        return svg(figure, title)


def groups(
    title: str,
    heading: str,
    rows: Mapping[str, Mapping[str, str]],
    colours: Mapping[str, str],
    limits: tuple[float, float],
) -> str:
    """One group of bars per row, on one logarithmic scale. The cells are figures in ns."""
    with rc_context({**STYLE, "font.size": 9.75}):
        figure = Figure(figsize=(720 * PX, (60 + 82 * len(rows)) * PX))
        figure.suptitle(heading, x=0.014, ha="left", fontsize="medium", fontweight="bold")
        shown = figure.subplots(len(rows), sharex=True, squeeze=False)[:, 0]
        for axes, (words, row) in zip(shown, rows.items(), strict=True):
            names = list(colours)
            values = [float(row[name].replace(",", "")) for name in names]
            lengths = [value - limits[0] for value in values]  # a logarithmic scale has no zero
            drawn = axes.barh(
                names, lengths, 0.72, limits[0], color=list(colours.values()), zorder=2
            )
            for name, bar in zip(names, drawn, strict=True):
                bar.set_gid(f"bar: {words}, {name}")
            numbers = axes.bar_label(drawn, [f"{row[name]} ns" for name in names], padding=6)
            for label in numbers:
                label.set_bbox({"color": "white", "pad": 1})
            axes.set_xscale("log")
            axes.set_xlim(*limits)
            axes.minorticks_off()
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.grid(axis="x", color=GRID)
            axes.invert_yaxis()
            axes.set_title(words)
        return svg(figure, title)
