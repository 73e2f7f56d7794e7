# SPDX-License-Identifier: MIT
"""The figures of an experiment: a table, and a page with what they are compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rouse.lab.experiments import MORE, Experiment, Figure
from rouse.lab.quiet import LOUD, Reading, disturbances
from rouse.lab.runs import Result, Study
from rouse.render.charts import Bar, Bars, Curves, Value, number
from rouse.render.study import Block, Grid, Heading, Items, Page, Picture, Words
from rouse.text import counted

# Rounds from which on ranges that do not overlap are no chance (of equal rows, 3 % of those of four
# rounds do not, but a third of those of two), and how many times less rounds must differ: a round
# of a database differs from the next one by up to 100 %.
SURE_ROUNDS, NOTICED = 4, 2.0


def value_of(result: Result, figure: Figure) -> Value | None:
    values = [value * figure.factor for value in result.values(figure.key)]
    median = result.median(figure.key)
    if median is None or not all(map(math.isfinite, values)):
        return None
    return Value(median * figure.factor, min(values), max(values))


def cells(result: Result, experiment: Experiment) -> list[str]:
    if result.error:
        return [result.error, *("-" for _ in experiment.figures[1:])]
    return [str(value_of(result, figure) or "-") for figure in experiment.figures]


def table(results: Sequence[Result], experiment: Experiment) -> list[list[str]]:
    head = ["", *(figure.title for figure in experiment.figures)]
    return [head, *([each.step.label, *cells(each, experiment)] for each in results)]


def with_source(results: Sequence[Result], experiment: Experiment) -> list[list[str]]:
    """Return the table with the source's words about a row beside its figures."""
    head, *rows = table(results, experiment)
    if not any(each.step.source for each in results):
        return [head, *rows]
    return [
        [*head, "the source"],
        *([*row, each.step.source or "-"] for row, each in zip(rows, results, strict=True)),
    ]


def remarks(study: Study) -> list[str]:
    """Return what was said about the rows, besides their figures."""
    return [f"{each.step.label}: {each.remark}" for each in study.results if each.remark]


def state_of(readings: Sequence[Reading]) -> str:
    """Return whether others disturbed, and which settings did."""
    loud = [reading for reading in readings if reading.state == LOUD]
    found = "; ".join(f"{each.name}: {each.found}" for each in loud)
    if disturbances(readings):
        return f"not quiet: {found}"
    return f"quiet, except for its settings: {found}" if loud else "quiet"


# Comparisons


def times(ratio: float) -> str:
    return f"{number(ratio)} times" if ratio >= 0.1 else f"1/{number(1 / ratio)}"


def comparisons(study: Study) -> Iterator[tuple[str, bool]]:
    """Yield a sentence for each figure of each pair, and whether the newer one loses."""
    found = {each.step.label: each for each in study.results}
    for new, old in study.experiment.pairs:
        for figure in study.experiment.figures:
            ours, theirs = (value_of(found[label], figure) for label in (new, old))
            if not figure.better or not ours or not theirs or theirs.middle <= 0:
                continue
            ratio = ours.middle / theirs.middle
            is_less = ours.middle < theirs.middle
            shown, other = number(ours.middle), number(theirs.middle)
            apart = shown != other and (ours.high < theirs.low or theirs.high < ours.low)
            if study.rounds < SURE_ROUNDS:
                apart = apart and not 1 / NOTICED < ratio < NOTICED
            loses = apart and is_less == (figure.better == MORE)
            verdict = "it loses" if loses else "it wins" if apart else "no difference is shown"
            both = f"{shown} against {other}{f', {times(ratio)}' if ratio else ''}"
            yield f"{new}, against {old}: {figure.title} {both}: {verdict}", loses


def versions_line(versions: Sequence[str]) -> list[str]:
    return [f"Versions: {', '.join(versions)}."] if versions else []


def how(study: Study) -> Iterator[str]:
    seconds = f"{study.seconds:g} s"
    if study.rounds == 1:
        yield f"One round of at most {seconds} for each row."
    else:
        yield (
            f"{study.rounds} rounds of at most {seconds} for each row, in turn. A figure is the "
            "median, with the least and the most."
        )
    yield f"{study.machine}; {study.date}."
    yield from versions_line(study.versions)
    for each in study.results:
        yield f"{each.step.label}: {each.step.command}"


def machine_grid(readings: Sequence[Reading]) -> Grid:
    rows = [(each.name, each.state, each.found, each.why or "-") for each in readings]
    return Grid([("setting", "state", "found", "why it matters"), *rows], False)


def curves(study: Study) -> Iterator[Picture]:
    """Yield the curves that have two points or more."""
    found = {each.step.label: each for each in study.results}
    for curve in study.experiment.curves:
        for figure in study.experiment.figures:
            lines = {
                name: {
                    x: value
                    for x, label in labels.items()
                    if (value := value_of(found[label], figure))
                }
                for name, labels in curve.lines.items()
            }
            lines = {name: points for name, points in lines.items() if len(points) > 1}
            if figure.title in curve.figures and lines:
                name = f"{figure.title} by {curve.x_title}"
                title = f"{figure.title}, {figure.better}, by {curve.x_title}"
                yield Picture(name, Curves(title, curve.x_title, lines))


def page(study: Study) -> Page:
    experiment = study.experiment
    verdicts = list(comparisons(study))
    losses = [line for line, loses in verdicts if loses]
    failed = [each for each in study.results if each.error]
    blocks: list[Block] = [Words(f"This machine was {state_of(study.readings)}.")]
    if study.rounds < SURE_ROUNDS:
        few = counted(study.rounds, "round")
        blocks.append(
            Words(f"Only {few}: what differs by less than {NOTICED:g} times can be chance.")
        )
    if failed:
        blocks.append(Words(f"{counted(len(failed), 'row')} failed and has no figures."))
    blocks += [
        Heading("Today's figures beside the source's"),
        Grid(with_source(study.results, experiment)),
        Items(
            [
                *remarks(study),
                *experiment.notes,
                *(f"The source: {line}." for line in experiment.source),
            ]
        ),
        Words("The source's figures are of another machine: compare only ratios."),
    ]
    for figure in experiment.figures:
        if figure.better:
            bars = [
                Bar(each.step.label, each.step.kind, value_of(each, figure))
                for each in study.results
                if each.error or each.values(figure.key)
            ]
            chart = Bars(f"{figure.title}, {figure.better}", bars)
            if any(bar.value for bar in bars):
                blocks.append(Picture(figure.title, chart))
    blocks += curves(study)
    blocks += [
        Heading("The old mechanism beside the new one"),
        Items([line for line, _ in verdicts] or ["No pair of rows has figures."]),
        Heading("Where the newer mechanism loses"),
        Items(losses or ["In none of these figures."]),
        Heading("How quiet the machine was"),
        machine_grid(study.readings),
        Heading("How it was measured"),
        Items(list(how(study))),
    ]
    return Page(experiment.page, f"{experiment.name}: {experiment.title}", blocks)
