"""The exchanges that a restore replaces: they are claimed, and their logs have to end below those that come after them.

After a crash they may have been moved aside already, together with what the interrupted restore has put in their place.
A writer that was frozen before all this knows the number of its own log's next entry only, so the number with which the
new log continues has to be above the last ones of all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from spark_ext.exchange import decisions
from spark_ext.exchange.kinds import kind_at, parts
from spark_ext.exchange.pinned import UNFINISHED
from spark_ext.jobs.restore_targets import REPLACED
from spark_ext.spark.spark_log import local_path

if TYPE_CHECKING:
    from spark_ext.exchange.contract import ExchangeMaster
    from spark_ext.model.commits import FenceMark


def exchanges_in(place: str, who: str) -> Iterator[tuple[str, str, ExchangeMaster]]:
    """Name, name for messages and master of each exchange in a folder.

    One that an interrupted restore has not put back in full is left out: nobody has ever written to it.

    Args:
        place: a state directory, or what a restore has moved out of one.
        who: the job, for messages.

    Raises:
        StateError: there is something else in the place of one.
    """
    root = local_path(f"{place}/exchanges")
    for folder in sorted(root.iterdir()) if root is not None and root.is_dir() else ():
        exchange = f"{who}, exchange '{folder.name}'"
        if (folder / UNFINISHED).exists():
            continue
        master = parts(kind_at(str(folder)), str(folder), exchange).master
        if master.describe() is not None:
            yield folder.name, exchange, master


def claim_exchanges(state: str, interrupted: Iterable[int], mark: FenceMark, job_id: str, who: str) -> dict[str, int]:
    """Claim all exchanges of a state directory; the number of the last entry that each of them has had.

    Args:
        state: the directory.
        interrupted: the lineages of the restores that were interrupted. What they have moved aside they had claimed.
        mark: of the restore's incarnation.
        job_id: of the job.
        who: the job, for messages.

    Raises:
        FencedError: a newer incarnation has claimed one.
        StateError: one is damaged, or something else.
        OSError, StorageError: one cannot be read or written.
    """
    last: dict[str, int] = {}
    for lineage in interrupted:
        for name, _, master in exchanges_in(f"{state}/{REPLACED}/{lineage}", who):
            last[name] = max(last.get(name, -1), master.log.look().last)
    for name, exchange, master in exchanges_in(state, who):
        at = time.time_ns() // 1_000_000
        adopted = partial(decisions.adopt_entry, mark=mark, job_id=job_id, who=exchange, at=at)
        master.log.append(adopted, str(mark.incarnation))
        last[name] = max(last.get(name, -1), master.log.look().last)
    return last
