"""The exchanges that a restore replaces: they are claimed, and their logs have to end below those that come after them.

After a crash they may have been moved aside already, together with what the interrupted restore has put in their place.
A writer that was frozen before all this knows the number of its own log's next entry only, so the number with which the
new log continues has to be above the last ones of all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_ext.checkpoints.savepoint import UNCHANGED, exchange_folder
from spark_ext.errors import RESET, StateError
from spark_ext.exchange import decisions
from spark_ext.exchange.kinds import kind_at, parts
from spark_ext.exchange.pinned import UNFINISHED, read_pinned
from spark_ext.jobs.restoring.restore_targets import REPLACED
from spark_ext.storage import child, local_path

if TYPE_CHECKING:
    from spark_ext.exchange.contract import ExchangeMaster
    from spark_ext.jobs.composition import Composition
    from spark_ext.jobs.restoring.restore_checks import Comparison
    from spark_ext.model.commits import FenceMark
    from spark_ext.queries.spec import QuerySpec


def exchanges_in(place: str, operator: str) -> Iterator[tuple[str, str, ExchangeMaster]]:
    """Name, name for messages and master of each exchange in a folder.

    One that an interrupted restore has not put back in full is left out: nobody has ever written to it.
    """
    root = local_path(f"{place}/exchanges")
    for folder in sorted(root.iterdir()) if root is not None and root.is_dir() else ():
        exchange = f"{operator}, exchange '{folder.name}'"
        if (folder / UNFINISHED).exists():
            continue
        master = parts(kind_at(str(folder)), str(folder), exchange).master
        if master.describe() is not None:
            yield folder.name, exchange, master


def claim_exchanges(
    state: str, interrupted: Iterable[int], mark: FenceMark, job_id: str, operator: str
) -> dict[str, int]:
    """Claim all exchanges of a state directory; the number of the last entry that each of them has had."""
    last: dict[str, int] = {}
    for lineage in interrupted:
        for name, _, master in exchanges_in(f"{state}/{REPLACED}/{lineage}", operator):
            last[name] = max(last.get(name, -1), master.log.look().last)
    for name, exchange, master in exchanges_in(state, operator):
        at = time.time_ns() // 1_000_000
        adopted = partial(decisions.adopt_entry, mark=mark, job_id=job_id, who=exchange, at=at)
        master.log.append(adopted, str(mark.incarnation))
        last[name] = max(last.get(name, -1), master.log.look().last)
    return last


def check_readers(comparison: Comparison, composition: Composition, specs: Sequence[QuerySpec], *, late: bool) -> None:
    """Refuse a source that has not begun, and reads an exchange whose first rows the savepoint lacks.

    Args:
        late: whether there are others, which may read what is read under a uid that none of these has.
    """
    readers = {(reader.exchange, reader.uid): spec.uid for spec in specs for reader in composition.reads(spec)}
    if late:
        made = composition.exchanges.items()
        readers = {**{(name, uid): "" for name, exchange in made for uid in exchange.readers}, **readers}
    for (name, uid), query in readers.items():
        part = comparison.saved_query(query)
        begun = part is not None and (part.finished or part.epoch is not None)
        if begun or name not in comparison.saved.metadata.exchanges:
            continue
        who = f"job '{comparison.job}', query '{query or '(not built yet)'}', source '{uid}'"
        pinned = read_pinned(child(comparison.saved.folder, exchange_folder(name)), who)
        released = pinned.log.state.released_rows
        if released:
            raise StateError(
                f"the first {released} rows of exchange '{name}' had been released when the savepoint was taken, and "
                "this source had read nothing by then",
                operator=f"{who}, {comparison.saved.who}",
                kept=UNCHANGED,
                do="leave the source out; or restore without it, and then discard the history of the query that writes "
                f"the exchange, with {RESET}",
            )
