"""The display of a timeline: coloured bars in a terminal, and the same as HTML in a notebook."""

from __future__ import annotations

import html
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from spark_ext.views.style import colour, count, duration
from spark_ext.views.timeline import ENDED, JOB, Final, Interval, Span, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType

MOST_STAYS = 6  # states of an operator that are listed in order; of more, each state is named once with its whole time
WIDTH = 48  # characters of a bar on a wide terminal; a narrow one gets a quarter of its width


class DisplayTimeline(Timeline):
    """A timeline that shows itself: with `rich.print`, and as the value of a notebook's cell."""

    def __rich__(self) -> RichTimeline:
        return RichTimeline(self)

    def _repr_html_(self) -> str:
        return to_html(self)


class RichTimeline:
    """A timeline for `rich.print`. Intervals that have not ended are shown until `now`."""

    def __init__(self, timeline: Timeline, now: datetime | None = None) -> None:
        self._now = now or datetime.now(timezone.utc)
        self._timeline = timeline.until(self._now)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        for span in self._timeline.spans:
            yield from self._downs(span.since)
            width = max(10, min(WIDTH, options.max_width // 4))
            yield Group(
                Text(headline(span, self._now), style="bold"),
                self._table(span, width),
                *(Text(final_words(final), style="blue") for final in span.finals),
            )
        yield from self._downs(self._now)

    def _downs(self, until: datetime) -> list[Text]:
        return [Text(words, style="bold red") for words in down_words(self._timeline, until)]

    def _table(self, span: Span, width: int) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, width=width)
        table.add_column()
        for operator in span.operators:
            drawn = bar(span, operator, self._now, width)
            table.add_row(Text(operator or "(job)"), drawn, Text(_states(span, operator, self._now)))
        return table


def down_words(timeline: Timeline, until: datetime) -> list[str]:
    """A line about the downtime up to a start, or up to now."""
    return [f"DOWN {duration(down.seconds(until))}: {down.reason}" for down in timeline.downs if down.until == until]


def headline(span: Span, now: datetime) -> str:
    """One line about an incarnation."""
    lasted = ((span.until or now) - span.since).total_seconds()
    started = f"{span.since:%Y-%m-%d %H:%M:%S} UTC"
    return f"incarnation {span.number}  {started}  {duration(lasted)}  {span.outcome or 'running'}"


def final_words(final: Final) -> str:
    """One line about a final checkpoint: its steps, with the time since the first."""
    first = final.steps[0][1]
    passed = ", ".join(
        status if at == first else f"{status} +{(at - first).total_seconds() * 1000:.0f} ms"
        for status, at in final.steps
    )
    return f"{final.query}: final checkpoint after epoch {final.epoch}: {passed}"


def bar(span: Span, operator: str, now: datetime, width: int = WIDTH) -> Text:
    """One operator's states over an incarnation's time; where several share a character, the last one shows."""
    cells = [(" ", "")] * width
    for interval in span.of(operator):
        left, right = _extent(span, interval, now)
        first = min(width - 1, int(left * width))
        last = max(first + 1, round(right * width))
        mark = "▌" if interval.state in ENDED else "━"
        for cell in range(first, min(width, last)):
            cells[cell] = (mark, colour(interval.state).terminal)
    out = Text()
    for mark, style in cells:
        out.append(mark, style=style or None)
    return out


def _extent(span: Span, interval: Interval, now: datetime) -> tuple[float, float]:
    """Where an interval begins and ends in its incarnation, as fractions of its length."""
    whole = max(1e-6, ((span.until or now) - span.since).total_seconds())
    left = (interval.since - span.since).total_seconds() / whole
    right = ((interval.until or now) - span.since).total_seconds() / whole
    return min(1.0, max(0.0, left)), min(1.0, max(0.0, right))


def _states(span: Span, operator: str, now: datetime) -> str:
    stays: list[tuple[str, float]] = []
    for interval in span.of(operator):
        # Another reason is no other state.
        before = stays.pop()[1] if stays and stays[-1][0] == interval.state else 0.0
        stays.append((interval.state, before + interval.seconds(now)))
    words = " → ".join(_stay(state, seconds) for state, seconds in stays)
    if len(stays) > MOST_STAYS:
        times = Counter(state for state, _ in stays)
        spent = {state: sum(seconds for one, seconds in stays if one == state) for state in times}
        words = ", ".join(
            _stay(state, spent[state]) + (f" ({number} times)" if number > 1 else "") for state, number in times.items()
        )
    if operator != JOB and operator in span.epochs:
        words += f"  ({count(span.epochs[operator], 'epoch')}, {count(span.rows.get(operator, 0), 'row')})"
    return words


def _stay(state: str, seconds: float) -> str:
    return state if state in ENDED else f"{state} {duration(seconds)}"


def to_html(timeline: Timeline, now: datetime | None = None) -> str:
    """A timeline as HTML, without style sheet or script."""
    now = now or datetime.now(timezone.utc)
    timeline = timeline.until(now)
    out = []
    for span in timeline.spans:
        out += [f"<div>{html.escape(words)}</div>" for words in down_words(timeline, span.since)]
        out.append(f"<div><b>{html.escape(headline(span, now))}</b></div><table style='width:100%'>")
        for operator in span.operators:
            blocks = "".join(_block(span, interval, now) for interval in span.of(operator))
            out.append(
                f"<tr><td style='width:16%'>{html.escape(operator or '(job)')}</td>"
                f"<td style='width:50%'><div style='position:relative;height:14px;background:#eee'>{blocks}</div></td>"
                f"<td>{html.escape(_states(span, operator, now))}</td></tr>"
            )
        out.append("</table>")
        out += [f"<div>{html.escape(final_words(final))}</div>" for final in span.finals]
    out += [f"<div>{html.escape(words)}</div>" for words in down_words(timeline, now)]
    return "".join(out)


def _block(span: Span, interval: Interval, now: datetime) -> str:
    left, right = _extent(span, interval, now)
    title = html.escape(f"{interval.state} since {interval.since:%H:%M:%S.%f} UTC. {interval.reason}", quote=True)
    return (
        f"<div title='{title}' style='position:absolute;top:0;height:14px;background:{colour(interval.state).html};"
        f"left:{min(99.5, left * 100):.2f}%;width:{max(0.5, (right - left) * 100):.2f}%'></div>"
    )
