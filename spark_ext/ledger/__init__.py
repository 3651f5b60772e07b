"""The ledger: Delta tables in which all processes of a job meet. What is not in them did not happen.

Written by delta-rs, each commit fenced by the incarnation's number; readable by anything that reads Delta.
"""

from spark_ext.delta.transactions import Fence
from spark_ext.ledger.frames import LedgerFrames
from spark_ext.ledger.identity import Incarnation
from spark_ext.ledger.incarnation import start_incarnation
from spark_ext.ledger.ledger import Ledger
from spark_ext.ledger.maintenance import MaintenanceSettings, maintain
from spark_ext.ledger.writer import LedgerWriter

__all__ = [
    "Fence",
    "Incarnation",
    "Ledger",
    "LedgerFrames",
    "LedgerWriter",
    "MaintenanceSettings",
    "maintain",
    "start_incarnation",
]
