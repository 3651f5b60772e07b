"""A savepoint of a job that does not run: from what Spark's logs, the exchanges and the ledger say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.checkpoints.pinning import pin
from spark_ext.checkpoints.unaligned import Unaligned
from spark_ext.errors import CheckpointError, StateError
from spark_ext.exchange.kinds import parts
from spark_ext.exchange.view import ExchangeView
from spark_ext.jobs.checkpointing.retained import unused_number
from spark_ext.jobs.checkpointing.savepoint_requests import completed
from spark_ext.jobs.checkpointing.savepoints import Cutting, Member, describe
from spark_ext.jobs.starting.flow import checked_graph, links_of, opened
from spark_ext.jobs.starting.recorded_past import check_past, compared, complete_rescales
from spark_ext.ledger import LedgerWriter, start_incarnation
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.memory import JobMemory
from spark_ext.model.checkpoint_plan import NotNow
from spark_ext.spark.backend.kinds import backend_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.jobs.composition import Composition
    from spark_ext.ledger import Incarnation, Ledger


def savepoint_of_stopped(spark: SparkSession, composition: Composition, ledger: Ledger, folder: str) -> int:
    """Take a savepoint of a job that has ended, in whatever way, where it stands."""
    if not JobMemory.read(ledger).ever:
        raise StateError(
            "the job has not been started, so there is nothing to save",
            operator=f"job '{composition.job}'",
            kept="nothing was changed",
            do="start it first",
        )
    incarnation = start_incarnation(
        ledger,
        composition.job,
        jvm_pid=backend_of(spark).jvm_pid(spark),
        application_id=backend_of(spark).application_id(spark),
    )
    writer = LedgerWriter(ledger, incarnation)
    try:
        cutting = _cut(composition, ledger, incarnation)
        what = describe(cutting, ledger)
        pin(spark, folder, what)
        writer.append(completed(cutting, what.metadata, cutting.taken.at, folder))
        return cutting.number
    finally:
        writer.end("savepoint")


def _cut(composition: Composition, ledger: Ledger, incarnation: Incarnation) -> Cutting:
    memory = JobMemory.read(ledger)
    specs, gated = opened(composition, memory, incarnation.number, composition.stored_configuration())
    complete_rescales(composition.state, memory, composition.uids)
    check_past(compared(composition.job, memory, ledger, specs, composition.declared, incarnation, gated))
    graph = checked_graph(composition, specs, gated, memory)
    links = links_of(composition, specs, waiting=bool(gated))
    members = [Member.of_memory(spec, memory, composition.state) for spec in specs]
    views = {}
    for link in links:
        operator = f"job '{composition.job}', exchange '{link.name}'"
        view = ExchangeView(parts(link.kind, link.path, operator, link.options).master)
        if view.look():
            views[link.name] = view
    logged = {member.spec.uid: member.logged for member in members}
    looks = {member.spec.uid: member.look() for member in members}
    taken = Unaligned(lambda query: logged[query]()).take(graph, looks, views)
    if isinstance(taken, NotNow):
        raise CheckpointError(
            f"no cut is consistent: {taken}",
            operator=f"job '{composition.job}'",
            kept="everything is unchanged",
            do="start the job once and stop it, and try again",
        )
    number, mode = unused_number(composition.state, memory.next_checkpoint_id), CheckpointMode.UNALIGNED
    return Cutting(composition.job, incarnation, number, "savepoint", mode, taken, graph, members, links, views)
