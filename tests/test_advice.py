"""What errors advise: each `do` of the product is carried out by a test, or says why it cannot be.

Following an advice neither loses a row nor writes one twice, and ends in a state that runs.
"""

import re
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_ext as sx
from spark_ext.errors import NEW_QUERY, RESET
from spark_ext.jobs.job import Job
from tests.support.advice import ROOT, advice
from tests.support.jobs import JobHarness

pytestmark = pytest.mark.slow(4, "all sources of the product are parsed, once")

VALUE: Final = "tests/conformance/test_table.py::test_each_shipped_connector_runs_the_kit"
"""Another value of an option, argument or setting: each connector runs its contract kit with valid ones."""

IN_QUERY: Final = "tests/jobs/test_bad_input.py::test_a_column_of_another_type_in_a_file"
"""Rows or columns are changed by an expression of Spark's in the query, and the job is started again."""

AGAIN: Final = "tests/jobs/test_storage_away.py::test_a_job_outlasts_storage_that_fails_for_a_moment"
"""The job tries again by itself, or is started again."""

STORAGE: Final = "outside: storage, its permissions and network, and what others do there"
BACKUP: Final = "outside: a backup of the user's; what is put back whole is as it was"
SERVER: Final = "outside: a server, broker or registry, and its administrator"
INSTALL: Final = "outside: software, machines and environments"
CODE: Final = "outside: code of the user's or of another release"
LOOK: Final = "outside: somebody looks at a log, a process or a connection, and acts on what is found"

TABLE: Final = (
    # -- the history of a query, or of a job
    (r"NEW_QUERY|in a new query", "tests/test_advice.py::test_input_is_read_again_in_a_new_query_without_a_row_twice"),
    (r"release that|release of spark-ext|use a release|use the Spark version", CODE),
    (r"files? .*from a backup|folder from a backup|table from a backup|offsets/", BACKUP),
    (r"job\.reset|RESET|_reset\(",
     "tests/conformance/test_identity.py::test_i7_a_table_deleted_under_a_stopped_job_demands_a_reset"),
    (r"renamed_from|ran before, once|uid that was not used|under the new name",
     "tests/conformance/test_identity.py::test_i1_a_renamed_query_is_refused_until_the_user_says_so"),
    (r"job\.remove|add it, |add it again|leave out job\.add|leave the query out|remove that call",
     "tests/conformance/test_identity.py::test_i8_a_job_whose_unfinished_query_is_gone_is_not_finished"),
    (r"STATE reload|reload again", "tests/jobs/test_lookups.py::"
     "test_a_version_that_is_gone_is_refused_and_a_reload_is_the_way_out"),
    (r"accept=\(", "tests/conformance/test_identity.py::test_i6_what_an_operator_reads_or_writes_identifies_it"),
    (r"move it back to|swap|order of their first start|sources? back as they were",
     "tests/conformance/test_restore.py::test_r12_two_sources_swapped_between_runs_are_refused"),
    (r"accept_duplicates|accept that later rows|another state directory, with outputs|"
     r"into another state directory|into an empty state",
     "tests/conformance/test_savepoints.py::test_r10_a_sink_without_rollback_needs_duplicates_accepted"),
    (r"complete it with job\.restore|state that was restored|as it was restored",
     "tests/jobs/test_restores.py::test_interrupted_at_each_step_and_repeated"),
    (r"savepoint|retained|checkpoints?\(\)|restore in place|job\.as_of|aligned checkpoint",
     "tests/jobs/test_restores.py::test_r10_r13_in_place_after_the_end_and_again_as_another_job"),
    (r"rescale|number of partitions|state_partitions",
     "tests/jobs/test_rescale.py::test_an_epoch_in_doubt_is_completed_before_a_rescale"),
    (r"takeover|_TAKE_OVER|job that runs|own uid, or stop the other",
     "tests/jobs/test_bad_input.py::test_two_jobs_of_one_session_on_one_state"),
    (r"newer (incarnation|one|start)|older copy|which copy|newest state|only one",
     "tests/jobs/test_bad_input.py::test_a_failure_of_a_driver_that_was_fenced_off_says_so"),
    (r"after`|after=",
     "tests/jobs/test_linked_queries.py::test_a_query_behind_another_is_built_when_that_has_finished"),
    (r"function that was given to job\.add|that its function reads",
     "tests/jobs/test_linked_queries.py::test_a_query_that_cannot_be_built_fails_the_job_by_name"),
    (r"exchanges?\b",
     "tests/jobs/test_linked_queries.py::test_a_changed_or_damaged_exchange_is_refused_by_name"),
    (r"RESTORE|put the target back|put it back|put the table back|\{put_back\}", BACKUP),
    # -- how a job runs and ends
    (r"until='now'|`until`|drain it", "tests/conformance/test_finish.py::"
     "test_available_now_over_a_source_of_sparks_ends_nothing"),
    (r"available_now",
     "tests/queries/test_writer_checks.py::test_sources_that_a_job_cannot_read_to_an_end_are_refused"),
    (r"with_watermark|watermark",
     "tests/conformance/test_finish_watermark.py::test_f2_exactly_one_end_of_input_after_the_last_row"),
    (r"trigger", "tests/queries/test_writer_checks.py::test_what_a_job_sets_or_would_ignore_is_refused"),
    (r"once as it was|once with the uid|until that epoch is committed|once and stop it|start it once|commit an epoch",
     "tests/jobs/test_rescale.py::test_an_epoch_in_doubt_is_completed_before_a_rescale"),
    (r"behind the newest number", "tests/gateway/test_gateway.py::test_what_is_known_of_producers_and_receipts"),
    (r"\(seek\)|send the (event|channel)", "tests/sources/delta_snapshot/test_follow.py::"
     "test_a_log_cleaned_of_the_last_version_read_is_not_followed"),
    (r"on_change|changes=true",
     "tests/sources/delta_snapshot/test_follow.py::test_a_commit_that_changes_rows_is_refused"),
    (r"quarantine|on_bad_row",
     "tests/jobs/test_bad_rows.py::test_a_job_that_failed_on_a_bad_row_continues_by_collecting"),
    (r"max_bad_rows|raise the limit", "tests/jobs/test_bad_rows.py::test_a_limit_stops_the_job_behind_the_epoch"),
    (r"changed_file|_version=\{", "tests/jobs/test_bad_rows.py::"
     "test_a_job_that_failed_on_a_bad_row_continues_by_collecting"),
    # -- outside of the product
    (r"pip install|install |PYSPARK|JAVA|jars?\b|spark\.jars|Spark \{|full Java|mirror|process of its own", INSTALL),
    (r"GRANT|ALTER TABLE|CREATE|pg_|postgresql\.conf|server('s|, database| is running)|role|statement_timeout|"
     r"brokers?\b|topic|registry|schema_registry|ACL|retention|transaction_timeout|max_prepared|unique index|"
     r"ROLLBACK PREPARED|partition, and insert|certificate|endpoint|receiver|proxy|PROXY|URI with|credentials", SERVER),
    (r"storage|permission|space|disk|mount|chmod|chown|TMPDIR|writable|readable|folder|machines of the cluster|network",
     STORAGE),
    (r"from a backup|restore the|repair|intact copy", BACKUP),
    (r"find out|look at|look for|see the|end (them|process)|report the stack|free some|ask for|stacks", LOOK),
    (r"derive|subclass|contract|def `|`def|async def|register\(|function|module|listener|class\b|coroutine", CODE),
    # -- nothing, or another try
    (r"^nothing|no action|retried|try again|tried again|again\b|wait|sent again|send it after|may have been stored|"
     r"continues|replayed", AGAIN),
    # -- other values, columns and names
    (r"uid", "tests/jobs/test_bad_input.py::test_a_uid_that_is_missing_or_stands_for_two"),
    (r"cast|filter|coalesce|in the query|column|rows|declare|select|\.schema\(|rename", IN_QUERY),
    (r"^(correct|use|give|choose|name|set|write|remove|leave|add|check|raise|keep|let|make|pass|create|call|start|"
     r"put|load|replace|shorten|stop|make|lower|partition|run|get|read|return|smaller|state|define|import|implement|ask|list|find|register|repeat|report|see|begin)\b",
     VALUE),
)  # fmt: skip
"""By pattern, of which the first that an advice has counts: the test that carries it out, or why there is none."""


def of(text: str) -> str | None:
    return next((how for pattern, how in TABLE if re.search(pattern, text)), None)


def test_each_advice_is_carried_out_by_a_test_or_says_why_not() -> None:
    found = advice()
    assert len(found) > 500, "the sources were found"
    assert not {text: place for text, place in found.items() if of(text) is None}
    used = {id(pattern) for text in found for pattern, _ in [next(row for row in TABLE if re.search(row[0], text))]}
    assert not [pattern for pattern, _ in TABLE if id(pattern) not in used], "no advice has them"


@pytest.mark.parametrize("how", sorted({how for _, how in TABLE}))
def test_each_reason_is_one_of_the_table_and_each_test_exists(how: str) -> None:
    file, _, name = how.partition("::")
    assert how.startswith("outside: ") or f"\ndef {name}(" in (ROOT / file).read_text()


def test_a_reset_is_advised_with_what_it_needs() -> None:
    """Without cascade it is refused when queries are behind; into the old target it writes all rows again."""
    assert "cascade=True" in RESET and "emptied targets" in RESET
    named = [text for text in advice() if re.search(r"job\.reset\('", text)]
    assert named and all("cascade=True" in text for text in named)


def test_taking_over_is_advised_to_starts_alone() -> None:
    assert all("Job(..., takeover=True)" in text for text in advice() if "takeover" in text)


def test_input_is_read_again_in_a_new_query_without_a_row_twice(lab: JobHarness) -> None:
    assert "(job.remove)" in NEW_QUERY and "target of its own" in NEW_QUERY

    def job(name: str) -> Job:
        made = sx.Job(lab.spark, "lab", state=lab.folder / "state")
        reader = lab.spark.readStream.format("files").schema("n bigint").options(uid=f"{name}-in", watch="true")
        rows = reader.load(str(lab.folder / "in"))
        path = str(lab.folder / name)
        return made.add(name, rows.writeStream.format("folder").options(uid=f"{name}-out", path=path))

    (lab.folder / "in").mkdir()
    for number in (1, 2):
        pq.write_table(pa.table({"n": [number]}), lab.folder / "in" / f"{number}.parquet")
        assert job("former").run(until="now", progress=False).caught_up
    assert job("anew").remove("former").run(until="now", progress=False).caught_up
    assert sorted(row["n"] for row in lab.rows("anew")) == [1, 2]
    assert sorted(row["n"] for row in lab.rows("former")) == [1, 2], "what it has written stays"
