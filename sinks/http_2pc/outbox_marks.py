"""What the table of an outbox records of an epoch: that it is decided, that it was sent, and which files it has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from spark_ext.sinks.contract import Epoch

if TYPE_CHECKING:
    from deltalake import DeltaTable, Transaction

_TASK: Final = re.compile(r"-p(\d+)-a\d+-[0-9a-f]{16}\.")


def label(lineage: int, query_id: str, number: int) -> str:
    """The epoch's value in the outbox's partition column."""
    return f"{lineage}-{query_id}-{number}"


def sent_id(epoch: Epoch) -> str:
    """The id under which the table records the last epoch acknowledged by the receiver."""
    return f"sent:{epoch.application}"


def decided_id(epoch: Epoch) -> str:
    """The id under which the table records of which epoch the mark beside it is."""
    return f"decided:{epoch.application}"


def decided_mark_id(epoch: Epoch) -> str:
    """The id under which a decision keeps the mark of the rows that tasks have put aside; 0: there are none."""
    return f"decided_bad_rows:{epoch.application}"


def decision(epoch: Epoch, mark: int | None) -> list[Transaction]:
    """What a decision says of the rows that are not in its files."""
    from deltalake import Transaction

    return [Transaction(decided_id(epoch), epoch.number), Transaction(decided_mark_id(epoch), mark or 0)]


def marked(epoch: Epoch, mark: int | None) -> list[Transaction]:
    """The transaction that keeps the mark of an epoch's bad rows."""
    if mark is None:
        return []
    from deltalake import Transaction

    from spark_ext.delta.transactions import bad_rows_name

    return [Transaction(bad_rows_name(epoch), mark)]


def is_sent(table: DeltaTable, epoch: Epoch) -> bool:
    """Whether the receiver is known to have all of an epoch."""
    sent = table.transaction_version(sent_id(epoch))
    return sent is not None and sent >= epoch.number


def files_of(table: DeltaTable, epoch: Epoch) -> list[str]:
    """The files of a decided epoch, in the order of their tasks' numbers: the same in any process."""
    import pyarrow as pa

    files = pa.table(table.get_add_actions(flatten=True).select(["path", "partition.epoch"]))
    wanted = label(epoch.lineage, epoch.query_id, epoch.number)
    names = [file["path"] for file in files.to_pylist() if file["partition.epoch"] == wanted]
    return sorted(names, key=lambda name: (_task(name), name))


def _task(name: str) -> int:
    found = _TASK.search(name)
    return int(found[1]) if found else -1
