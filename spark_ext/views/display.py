"""A job as text, for the end of a run, and as HTML, for a notebook."""

from __future__ import annotations

from html import escape

from spark_ext.views.snapshot import JobSnapshot, QuerySnapshot
from spark_ext.views.style import count, latency_text

_COLUMNS = ("query", "state", "epochs", "rows", "last epoch", "rows in state")


def job_text(snapshot: JobSnapshot) -> str:
    """A line about the job, one about each query, and the error of a job that failed."""
    lines = [
        f"job '{snapshot.job}' {snapshot.state.value}: {_read(snapshot)}, {snapshot.seconds:.1f} s, "
        f"incarnation {snapshot.incarnation}"
    ]
    for query in snapshot.queries:
        past = " in an earlier run" if query.finished_before else ""
        lines.append(f"  {query.uid}: {query.state.value}{past}, {', '.join((_read(query), *_left_out(query)))}")
    if snapshot.error:
        lines.append(snapshot.error)
    return "\n".join(lines)


def job_html(snapshot: JobSnapshot) -> str:
    """A line about the job, and a table with one row per query."""
    about = [f"<b>{escape(snapshot.job)}</b> {snapshot.state.value}"]
    if snapshot.incarnation:
        about += [
            count(snapshot.rows, "row"),
            count(snapshot.epochs, "epoch"),
            f"{snapshot.seconds:.1f} s",
            f"incarnation {snapshot.incarnation}",
        ]
    about.append(f"state in {escape(snapshot.state_directory)}")
    measured = any(query.latencies for query in snapshot.queries)
    columns = (*_COLUMNS, *(("latency",) if measured else ()), "reason")
    head = "".join(f"<th>{column}</th>" for column in columns)
    rows = "".join(f"<tr>{_cells(query, measured)}</tr>" for query in snapshot.queries)
    error = f"<pre>{escape(snapshot.error)}</pre>" if snapshot.error else ""
    return f"{' &middot; '.join(about)}<table><tr>{head}</tr>{rows}</table>{error}"


def _cells(query: QuerySnapshot, measured: bool) -> str:
    values = (
        query.uid,
        query.state.value,
        f"{query.epochs:,}",
        f"{query.rows:,}",
        "" if query.last_epoch is None else str(query.last_epoch),
        "" if query.state_rows is None else f"{query.state_rows:,}",
        *((latency_text(query),) if measured else ()),
        "; ".join(filter(None, (*_left_out(query), query.reason))),
    )
    return "".join(f"<td>{escape(value)}</td>" for value in values)


def _read(of: JobSnapshot | QuerySnapshot) -> str:
    return f"{count(of.rows, 'row')} in {count(of.epochs, 'epoch')}"


def _left_out(query: QuerySnapshot) -> tuple[str, ...]:
    """The rows that were read and are in no output, in words; nothing if there are none."""
    bad = (f"{count(query.bad_rows, 'bad row')} put aside",) if query.bad_rows else ()
    late = (f"{count(query.late_rows, 'late row')} dropped",) if query.late_rows else ()
    return (*bad, *late)
