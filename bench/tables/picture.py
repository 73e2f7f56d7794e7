# SPDX-License-Identifier: MIT
"""Draw the pictures of the studies as SVG: bars in panels, and a timeline of ticks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from tables.render import number

COLOURS = ("#3b6ea5", "#d1495b", "#edae49", "#6b8f71", "#7d6b91")
ROW, BAR, TEXT = 24, 14, 12
STYLE = (
    "text{font:12px sans-serif;fill:#222}.t{font-weight:bold}.n{fill:#555}"
    ".axis{stroke:#999;stroke-width:1}.late{stroke:#3b6ea5;stroke-width:2;fill:none}"
)


@dataclass
class Panel:
    """One bar per row. A bar of several values is stacked."""

    title: str
    parts: Sequence[str]  # names of the values of a row; a single one is not shown
    rows: list[list[float]] = field(default_factory=list)
    width: int = 190


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{mark}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    size = f'width="{width:.1f}" height="{height:.0f}"'
    return f'<rect x="{x:.1f}" y="{y:.0f}" {size} fill="{colour}"/>'


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="axis" x1="{x1:.1f}" y1="{y1:.0f}" x2="{x2:.1f}" y2="{y2:.0f}"/>'


def legend(parts: Sequence[str], left: float, top: float) -> Iterator[str]:
    x = left
    for part, colour in zip(parts, COLOURS, strict=False):
        yield box(x, top - 9, 10, 10, colour)
        yield text(x + 14, top, part, "n")
        x += 20 + 6.4 * len(part)


def bars(panel: Panel, left: float, top: float) -> Iterator[str]:
    yield text(left, top, panel.title, "t")
    if len(panel.parts) > 1:
        yield from legend(panel.parts, left, top + 18)
    most = max((sum(row) for row in panel.rows), default=0) or 1
    y = top + 30
    yield line(left, y, left, y + ROW * len(panel.rows))
    for row in panel.rows:
        x = left
        for value, colour in zip(row, COLOURS, strict=False):
            width = panel.width * value / most
            if width > 0:
                yield box(x, y + 5, width, BAR, colour)
            x += width
        yield text(x + 5, y + 5 + TEXT, number(sum(row)), "n")
        y += ROW


def image(width: float, height: float, title: str, body: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    paper = box(0, 0, width, height, "#fff")
    named = f"<title>{escape(title)}</title><style>{STYLE}</style>"
    return "\n".join([head, named, paper, *body, "</svg>"]) + "\n"


def panels(title: str, labels: Sequence[str], shown: Sequence[Panel], top: float = 20) -> list[str]:
    left = 16 + 6.6 * max(len(label) for label in labels)
    body = []
    for index, label in enumerate(labels):
        body.append(text(8, top + 30 + ROW * index + 5 + TEXT, label))
    for panel in shown:
        body += bars(panel, left, top)
        left += panel.width + 70
    return body


def chart(title: str, labels: Sequence[str], shown: Sequence[Panel]) -> str:
    width = 16 + 6.6 * max(len(label) for label in labels) + sum(p.width + 70 for p in shown)
    return image(width, 20 + 40 + ROW * len(labels), title, panels(title, labels, shown))


@dataclass(frozen=True)
class Ticks:
    """One thread at a clock's ticks: the ticks that wake it, and whether each ends its call."""

    title: str
    gaps_ms: Sequence[float]
    woken: Sequence[tuple[int, bool]]


def ticks(shown: Ticks, left: float, top: float, width: float) -> Iterator[str]:
    scale = width / sum(shown.gaps_ms)
    base = top + 62
    at = [left]
    for gap in shown.gaps_ms:
        at.append(at[-1] + scale * gap)
    yield text(left, top, shown.title, "t")
    yield line(left, base, at[-1], base)
    for tick, x in enumerate(at):
        yield line(x, base - 5, x, base + 5)
        yield text(x, base + 20, str(tick), "n", "middle")
    began = 0
    for tick, over in shown.woken:
        colour = COLOURS[0] if over else COLOURS[1]
        yield f'<circle cx="{at[tick]:.1f}" cy="{base:.0f}" r="5" fill="{colour}"/>'
        if over:
            middle, high = (at[began] + at[tick]) / 2, base - 44
            curve = (
                f"M{at[began]:.1f} {base:.0f} Q{middle:.1f} {high:.0f} {at[tick]:.1f} {base:.0f}"
            )
            yield f'<path class="late" d="{curve}"/>'
            began = tick
    yield from legend(("a wake-up that ends a call", "an early one"), left, base + 40)
