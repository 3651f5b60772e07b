"""Which entry follows from a state of an exchange's log: the rules of its writers. Pure.

Each function is called with exactly the state after which its entry is to be written, and again when another writer was
faster. None means that nothing is to be written, because it is there already.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_ext.errors import RESET, ConfigurationError, StateError
from spark_ext.exchange.entries import Entry, EntryKind, LogState, Segment, total_of
from spark_ext.model.commits import Claim, Epoch, FenceMark


def claim_entry(state: LogState, claim: Claim, who: str, at: int) -> Entry | None:
    """A start takes the exchange as the target of its query.

    After a reset a query starts from scratch under a new lineage, and abandons what it had written under older ones:
    the queries that read it have been reset with it, and would read those rows twice.
    """
    refuse_claim(state, claim, who)
    begins_anew = _begins_anew(state, claim.lineage)
    if state.mark.covers(claim.mark) and not begins_anew:
        return None
    return Entry(
        EntryKind.CLAIM,
        at,
        lineage=claim.lineage if begins_anew else 0,
        incarnation=claim.incarnation,
        start=claim.start,
        job_id=claim.job_id,
        after=-1 if begins_anew else None,
    )


def adopt_entry(state: LogState, mark: FenceMark, job_id: str, who: str, at: int) -> Entry | None:
    """A start of the job fences older ones off, also where the producer has finished and claims nothing any more."""
    mark.check(state.held, who)
    _refuse_foreign(state, job_id, who)
    if state.mark.covers(mark):
        return None
    return Entry(EntryKind.CLAIM, at, incarnation=mark.incarnation, start=mark.start, job_id=job_id)


def begin_anew_entry(state: LogState, mark: FenceMark, lineage: int, job_id: str, who: str, at: int) -> Entry | None:
    """What `claim_entry` abandons, for a producer that waits for other queries: its readers start before it does."""
    mark.check(state.held, who)
    _refuse_foreign(state, job_id, who)
    if not _begins_anew(state, lineage):
        return None
    return Entry(
        EntryKind.CLAIM, at, lineage=lineage, incarnation=mark.incarnation, start=mark.start, job_id=job_id, after=-1
    )


def _begins_anew(state: LogState, lineage: int) -> bool:
    """Whether a producer has written nothing in its lineage, and the exchange has what it wrote in an older one."""
    return lineage > state.lineage and (state.total > 0 or state.sealed is not None)


def refuse_claim(state: LogState, claim: Claim, who: str) -> None:
    """Refuse what `claim_entry` refuses."""
    claim.mark.check(state.mark, who)
    _refuse_foreign(state, claim.job_id, who)
    claim.check_state(claim.known(state.epochs), state.mark, who)


def _refuse_foreign(state: LogState, job_id: str, who: str) -> None:
    if state.job_id not in ("", job_id):
        what = "the exchange belongs to another job, or to this one before its state was deleted"
        do = "give the exchange another name; if the state was deleted, restore it, or delete the exchange's folder"
        raise ConfigurationError(what, operator=who, kept="the exchange is unchanged; nothing was started", do=do)


def epoch_entry(
    state: LogState, epoch: Epoch, segments: Sequence[Segment], partitions: int, who: str, at: int
) -> Entry | None:
    """An epoch of the producer."""
    epoch.check_target(state.held, state.epochs.get(epoch.application), who)
    if state.last_epoch(epoch.application) >= epoch.number:
        return None
    if state.sealed is not None:
        what = f"the exchange is sealed: its producer had finished, and epoch {epoch.number} comes after its end"
        do = f"use an exchange of another name for another query; to run the producer again, {RESET}"
        raise StateError(what, operator=who, kept="nothing of this epoch was written", do=do)
    rows = total_of(segments, partitions)
    return Entry(
        EntryKind.EPOCH,
        at,
        application=epoch.application,
        lineage=epoch.lineage,
        epoch=epoch.number,
        rows=rows,
        segments=tuple(segments),
        barrier=epoch.barrier,
        watermark=epoch.watermark,
        total=state.total + sum(rows),
        incarnation=epoch.incarnation,
    )


def seal_entry(state: LogState, epoch: Epoch, who: str, at: int) -> Entry | None:
    """The end of every partition. It fences with the mark of the start, as an epoch does."""
    epoch.check_target(state.held, state.epochs.get(epoch.application), who)
    if state.sealed is not None and state.sealed_by == epoch.application:
        return None
    return Entry(
        EntryKind.SEAL,
        at,
        application=epoch.application,
        lineage=epoch.lineage,
        epoch=epoch.number,
        total=state.total,
        incarnation=epoch.incarnation,
    )


def release_entry(state: LogState, below: int, rows: int, mark: FenceMark, who: str, at: int) -> Entry | None:
    """No reader needs the entries below a number any more."""
    mark.check(state.held, who)
    if below > state.last + 1:
        raise ValueError(f"{who} has entries up to {state.last}, and those below {below} are to be released")
    if below <= state.released:
        return None
    return Entry(EntryKind.RELEASE, at, below=below, total=rows, incarnation=mark.incarnation)


def register_entry(state: LogState, consumer: str, query: str, at: int) -> Entry | None:
    """A source reads the exchange: what it has not read is not released."""
    if state.consumers.get(consumer) == query:
        return None
    return Entry(EntryKind.REGISTER, at, consumer=consumer, query=query)


def forget_entry(state: LogState, consumer: str, who: str, at: int) -> Entry | None:
    """A source does not read the exchange any more."""
    if consumer not in state.consumers:
        known = ", ".join(f"'{uid}'" for uid in sorted(state.consumers)) or "none"
        what = f"'{consumer}' does not read the exchange; its readers are: {known}"
        raise ConfigurationError(what, operator=who, kept="the exchange is unchanged", do="correct the uid")
    return Entry(EntryKind.FORGET, at, consumer=consumer)
