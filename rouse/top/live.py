# SPDX-License-Identifier: MIT
"""`rouse top` on a terminal: one look per interval. Only visible lines are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from rouse.errors import EXIT_ENDED
from rouse.top import rowtext
from rouse.top.drill import Drill
from rouse.top.watched import Watched, tell

PLAIN = Style()
TITLE = Style(reverse=True)
CURSOR = Style(reverse=True)
SORTED_BY = ("cpu", "lck", "slp", "lat", "vcx", "name", "id")
LOOKING = "looking"
HELP = "s sort  r reverse  / filter  a all  l split  Enter sites  p pause  q quit"


class Lines(Widget, can_focus=True):
    """Lines of text, of which only the visible ones are made. The first one stays in place."""

    DEFAULT_CSS = "Lines { height: 1fr; width: 1fr; }"

    def __init__(self, cursor_is_shown: bool) -> None:
        super().__init__()
        self.title = ""
        self.count = 0
        self.line_at: Callable[[int], str] = lambda _row: ""
        self.top = 0
        self.cursor = 0
        self.cursor_is_shown = cursor_is_shown

    def set_lines(self, title: str, count: int, line_at: Callable[[int], str]) -> None:
        self.title, self.count, self.line_at = title, count, line_at
        self.move(0)
        self.refresh()

    def move(self, by: int) -> None:
        """Move the cursor, and scroll with it."""
        seen = max(self.size.height - 1, 1)
        if self.cursor_is_shown:
            self.cursor = max(0, min(self.cursor + by, self.count - 1))
            self.top = min(max(self.top, self.cursor - seen + 1), self.cursor)
        else:
            self.top += by
        self.top = max(0, min(self.top, self.count - seen))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        row = self.top + y - 1
        if y == 0:
            text, style = self.title, TITLE
        elif row < self.count:
            is_cursor = self.cursor_is_shown and row == self.cursor
            text, style = self.line_at(row), CURSOR if is_cursor else PLAIN
        else:
            text, style = "", PLAIN
        width = self.size.width
        # Segments are not parsed: a name's markup is its text.
        return Strip([Segment(text, style)]).adjust_cell_length(width, style).crop(0, width)


class Bar(Widget):
    """One line of text."""

    DEFAULT_CSS = "Bar { height: 1; width: 1fr; }"
    text = ""

    def show(self, text: str) -> None:
        self.text = text
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        return Strip([Segment(self.text, PLAIN)]).adjust_cell_length(width).crop(0, width)


class Top(App[int]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    Input { display: none; height: 1; border: none; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave"),
        Binding("p", "pause"),
        Binding("s", "sort"),
        Binding("r", "flip('reverse')"),
        Binding("a", "flip('all')"),
        Binding("l", "flip('split')"),
        Binding("slash", "filter"),
        Binding("escape", "leave_drill"),
        Binding("enter", "drill"),
        Binding("up", "move(-1)"),
        Binding("down", "move(1)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("home", "move(-1000000000)"),
        Binding("end", "move(1000000000)"),
    ]

    def __init__(self, watched: Watched, wanted: rowtext.Wanted, interval: float) -> None:
        super().__init__()
        self.watched = watched
        self.wanted = wanted
        self.interval = interval
        self.is_paused = False
        self.message = LOOKING
        self.picture = rowtext.Picture([])
        self.shown: list[int] = []
        self.key_of: dict[int, tuple[int, int, int]] = {}
        self.drill: Drill | None = None
        self.lines = Lines(cursor_is_shown=True)
        self.details = Lines(cursor_is_shown=False)
        self.totals, self.status = Bar(), Bar()
        self.input = Input(placeholder="part of a name", select_on_focus=False)

    def compose(self) -> ComposeResult:
        yield self.totals
        yield Vertical(self.lines, self.details)
        yield self.input
        yield self.status

    def on_mount(self) -> None:
        self.details.display = False
        self.lines.focus()
        self.set_interval(self.interval, self.look)
        self.show_all()

    def on_resize(self, _event: events.Resize) -> None:
        self.call_after_refresh(self.show_all)

    def look(self) -> None:
        if self.is_paused or (self.watched.ended and not self.watched.watches):
            return
        found = self.watched.step()
        if self.message == LOOKING:
            self.message = ""
        for text in self.watched.take_messages():
            self.message = text
        problems = [problem for interval in found for problem in interval.problems]
        if problems:
            self.message = rowtext.printable(problems[0])
        if found:
            self.picture = rowtext.Picture(found)
            if self.drill:
                self.drill.look(self.watched.watches.get(self.drill.path))
        self.show_all()

    # The screen

    def show_all(self) -> None:
        self.show_threads()
        self.show_details()
        self.totals.show(self.picture.total())
        state = " [paused]" if self.is_paused else ""
        sort = f"sorted by {self.wanted.sort}{' reversed' if self.wanted.reverse else ''}"
        only = f", only {self.wanted.filter!r}" if self.wanted.filter else ""
        parts = [self.message, f"{sort}{only}{state}", HELP]
        self.status.show("  |  ".join(part for part in parts if part))

    def show_threads(self) -> None:
        """Show the rows, and keep the cursor at its thread."""
        at = self.shown[self.lines.cursor] if self.lines.cursor < len(self.shown) else None
        key = self.key_of.get(at) if at is not None else None
        self.shown = self.picture.rows(self.wanted)
        width = self.lines.size.width or 80
        columns = rowtext.columns_for(self.wanted.split, width)
        self.key_of = {row: self.picture.key(row) for row in self.shown[: self.lines.top + 200]}
        if key is not None and self.lines.cursor:
            same = [i for i, row in enumerate(self.shown) if self.key_of.get(row) == key]
            self.lines.cursor = same[0] if same else self.lines.cursor
        self.lines.set_lines(
            rowtext.header(columns),
            len(self.shown),
            lambda i: self.picture.line(self.shown[i], columns, width),
        )

    def show_details(self) -> None:
        self.details.display = self.drill is not None
        self.lines.display = self.drill is None
        if self.drill:
            text = self.drill.lines()
            self.details.set_lines(text[0], len(text) - 1, lambda i: text[i + 1])

    # Keys

    def action_leave(self) -> None:
        has_ended = self.watched.ended and not self.watched.watches
        self.exit(EXIT_ENDED if has_ended else 0)

    def action_pause(self) -> None:
        self.is_paused = not self.is_paused
        self.show_all()

    def action_sort(self) -> None:
        order = SORTED_BY
        now = order.index(self.wanted.sort) if self.wanted.sort in order else -1
        self.wanted = replace(self.wanted, sort=order[(now + 1) % len(order)])
        self.show_all()

    def action_flip(self, what: str) -> None:
        flipped: Any = {what: not getattr(self.wanted, what)}
        self.wanted = replace(self.wanted, **flipped)
        self.show_all()

    def action_filter(self) -> None:
        self.input.value = self.wanted.filter
        self.input.styles.display = "block"
        self.screen.set_focus(self.input)  # at once: the next key is already for it

    def on_input_changed(self, event: Input.Changed) -> None:
        self.wanted = replace(self.wanted, filter=event.value)
        self.show_all()

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        self.leave_input()

    def leave_input(self) -> None:
        self.input.styles.display = "none"
        self.screen.set_focus(self.lines)

    def action_leave_drill(self) -> None:
        if self.input.has_focus:
            self.leave_input()
        else:
            self.drill = None
        self.show_all()

    def action_drill(self) -> None:
        if self.drill is None and self.lines.cursor < len(self.shown):
            row = self.shown[self.lines.cursor]
            _, number, tid = self.picture.key(row)
            path = self.picture.place(row)[0].path
            self.drill = Drill(path, number, tid, self.picture.name(row))
            self.drill.look(self.watched.watches.get(path))
            self.details.top = 0
            self.show_all()

    def action_move(self, by: int) -> None:
        (self.details if self.drill else self.lines).move(by)

    def action_page(self, by: int) -> None:
        self.action_move(by * max(self.lines.size.height - 2, 1))


def run(watched: Watched, wanted: rowtext.Wanted, interval: float) -> int:
    app = Top(watched, wanted, interval)
    status = app.run()
    if app.message and status:
        tell([app.message])
    return app.return_code or status or 0
