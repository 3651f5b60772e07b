"""What a start reads of its job's past, once."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.errors import ConfigurationError
from spark_ext.jobs.composition import ChangeDeclarations
from spark_ext.jobs.starting.identity import renames
from spark_ext.ledger import Ledger, LedgerWriter
from spark_ext.ledger.memory import FinalSteps, JobMemory
from tests.ledger.rows import checkpoint, definition, epoch, flag


def memory(writer: LedgerWriter) -> JobMemory:
    return JobMemory.read(writer.ledger)


def cut(number: int, query: str, epoch: int, incarnation: int = 1) -> object:
    part = {"query_id": f"id-{query}", "epoch": epoch, "sources": {"s": {"format": "files"}}, "sinks": {}}
    return replace(checkpoint(number), incarnation=incarnation, metadata={"version": 2, "queries": {query: part}})


def test_of_a_new_job_nothing_is_remembered(tmp_path: Path) -> None:
    found = JobMemory.read(Ledger(str(tmp_path / "nothing")))
    assert (found.names, found.ever, found.next_checkpoint_id) == (frozenset(), frozenset(), 1)
    assert (found.of("q").lineage, found.of("q").committed, found.of("q").definition) == (1, -1, None)


@pytest.mark.parametrize(
    ("word", "epochs"), [("epoch", 4), ("flag", 1), ("cut", 9), ("final", 7), ("all", 9)], ids=lambda it: str(it)
)
def test_the_newest_epoch_is_known_by_any_word(writer: LedgerWriter, word: str, epochs: int) -> None:
    rows = {"epoch": epoch(4), "flag": flag(1), "cut": cut(1, "q", 9), "final": checkpoint(2, "final", query="q")}
    writer.append(list(rows.values()) if word == "all" else [rows[word]])  # type: ignore[arg-type, list-item]
    assert memory(writer).of("q").committed == epochs
    assert memory(writer).of("r").committed == -1


def test_flags_steps_and_definitions_are_the_querys_own(writer: LedgerWriter) -> None:
    writer.append([flag(1), flag(2), flag(2), flag(4), flag(1, "t"), flag(3, "u"), flag(3, lineage=2)])
    writer.append([flag(9, query="other"), flag(0, kind="source"), flag(0, kind="query"), definition("other")])
    writer.append([epoch(3), epoch(9), epoch(7), epoch(2, lineage=2), checkpoint(2, "final", "FAILED", "q")])
    assert memory(writer).of("q").final is None
    writer.append([checkpoint(3, "final", "COMPLETED", "q"), checkpoint(3, "final", "FLAGGED", "q")])
    found = memory(writer)
    assert found.names == found.ever == {"q", "other"}
    assert found.of("q").flagged == {"s": 2, "t": 1, "u": 0}
    assert found.of("q").last_epoch == ("id-q-1", 9)
    assert found.of("q").flags == {("source", "s"), ("query", "")}
    assert found.of("q").final == FinalSteps(3, frozenset({"COMPLETED", "FLAGGED"}))
    assert found.of("q").input_done and not found.of("q").finished
    assert found.of("other").definition is not None and found.of("other").final is None
    assert found.next_checkpoint_id == 4


def test_a_reset_query_owns_nothing_and_can_be_reset_again(writer: LedgerWriter) -> None:
    writer.append([epoch(1), flag(1), definition(), cut(1, "q", 1, incarnation=0)])  # type: ignore[list-item]
    assert memory(writer).of("q").uids == {"s"}
    writer.new_lineage("q", "")
    found = memory(writer)
    assert (found.of("q").lineage, found.of("q").committed, found.of("q").uids) == (2, -1, frozenset())
    assert found.names == frozenset() and found.ever == {"q"}
    assert found.of("new").lineage == 2, "a query begins in the newest lineage"


def test_a_query_of_an_older_release_keeps_the_first_lineage(writer: LedgerWriter) -> None:
    writer.append([epoch(1, query="old"), epoch(1)])
    writer.new_lineage("q", "")
    assert memory(writer).of("old").lineage == 1
    writer.append(definition("new", lineage=2))
    writer.new_lineage("q", "")
    assert memory(writer).of("new").lineage == 2


def test_a_renamed_query_keeps_all_and_its_old_name_has_nothing(writer: LedgerWriter) -> None:
    writer.append([epoch(3, query="old"), flag(1, query="old"), definition("old"), cut(1, "old", 3, incarnation=0)])  # type: ignore[list-item]
    before = memory(writer).of("old")
    as_it_will_be = memory(writer).with_renamed("new", "old", 1)
    writer.renamed("new", "old", 1)
    for found in (as_it_will_be, memory(writer)):
        assert found.of("new") == replace(before, query="new")
        assert found.names == found.ever == {"new"}
        assert (found.of("old").lineage, found.of("old").committed) == (2, -1)


def test_a_removed_query_is_so_until_it_is_started_again(writer: LedgerWriter) -> None:
    writer.append([epoch(1), definition(incarnation=0)])
    writer.removed("q", 1)
    assert memory(writer).of("q").removed
    writer.append(definition(incarnation=2))
    assert not memory(writer).of("q").removed


def test_a_name_ever_used_cannot_be_taken_over_by_another_query(writer: LedgerWriter) -> None:
    """Rows of its first lineage, which a reset has discarded or a rename has given away, would count again."""
    writer.append([epoch(1, query="a"), epoch(1, query="b"), epoch(1, query="c")])
    writer.new_lineage("b", "")
    writer.renamed("d", "c", 1)
    known = memory(writer)
    for taken in ("b", "c", "d"):
        with pytest.raises(ConfigurationError, match=f"query '{taken}' has a history of its own"):
            renames("j", known, [taken], ChangeDeclarations({taken: "a"}))
    assert renames("j", known, ["e"], ChangeDeclarations({"e": "a"})) == {"e": "a"}
    assert renames("j", known, ["c"], ChangeDeclarations({"c": "d"})) == {"c": "d"}, "back again"
    assert renames("j", known, ["d"], ChangeDeclarations({"d": "c"})) == {}, "it is done"
