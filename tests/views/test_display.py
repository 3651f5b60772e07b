"""A job as text and as HTML."""

from dataclasses import replace

from spark_ext.model.lifecycle import State
from spark_ext.views.notebook import job_html, job_text
from tests.support.snapshots import job, query


def test_text() -> None:
    queries = query("a", State.FINISHED, rows=1200, epochs=1), query("b", State.FINISHED, finished_before=True)
    found = job(*queries, state=State.FINISHED, seconds=2.5)
    assert job_text(found).splitlines() == [
        "job 'flights' FINISHED: 1,200 rows in 1 epoch, 2.5 s, incarnation 2",
        "  a: FINISHED, 1,200 rows in 1 epoch",
        "  b: FINISHED in an earlier run, 0 rows in 0 epochs",
    ]


def test_rows_that_are_in_no_output_are_named() -> None:
    left_out = query("a", rows=7, bad_rows=1, late_rows=1200, rule_failures={"r": 3}, reason="stopped")
    said = ["1 bad row put aside", "3 rows failed rule 'r'", "at least 1,200 late rows dropped"]
    assert f"  a: RUNNING, 7 rows in 0 epochs, {', '.join(said)}" in job_text(job(left_out))
    assert f"<td>{'; '.join(said)}; stopped</td>".replace("'", "&#x27;") in job_html(job(left_out))


def test_files_that_were_put_aside_are_named() -> None:
    one = query("a", bad_rows=3, bad_files=("b.csv.gz",))
    assert ", 2 bad rows put aside, 1 file put aside: b.csv.gz" in job_text(job(one))
    many = query("a", bad_rows=5, bad_files=("1", "2", "3", "4", "5"))
    assert "0 epochs, 5 files put aside: 1, 2, 3, ..." in job_text(job(many))


def test_text_of_a_failed_job_ends_with_the_error() -> None:
    assert job_text(job(state=State.FAILED, error="no space left")).splitlines()[-1] == "no space left"


def test_a_run_until_now_names_the_state_that_it_leaves_to_the_next() -> None:
    left = query("a", State.SUSPENDED, rows=7, state_rows=3)
    said = "a: SUSPENDED, 7 rows in 0 epochs, 3 rows in its state for the next run, such as open windows, which "
    assert said in job_text(job(left, state=State.SUSPENDED))
    distinct = job_text(job(replace(left, emits=False), state=State.SUSPENDED)).splitlines()
    assert "  a: SUSPENDED, 7 rows in 0 epochs, 3 rows in its state for the next run" in distinct, "nothing ends them"
    assert "in its state" not in job_text(job(query("a", rows=7, state_rows=3)))


def test_html_has_a_row_for_each_query() -> None:
    page = job_html(job(query("a", rows=1200, epochs=3, last_epoch=8, state_rows=70), query("b", State.CREATED)))
    assert page.startswith(
        "<b>flights</b> RUNNING &middot; 1,200 rows &middot; 3 epochs &middot; 10.0 s &middot; incarnation 2"
        " &middot; state in out/state<table>"
    )
    assert "<td>a</td><td>RUNNING</td><td>3</td><td>1,200</td><td>8</td><td>70</td><td></td>" in page
    assert "<td>b</td><td>CREATED</td><td>0</td><td>0</td><td></td><td></td><td></td>" in page


def test_html_of_a_job_that_was_not_started_has_no_figures() -> None:
    page = job_html(job(query("a", State.CREATED), state=State.CREATED, incarnation=0, started=None))
    assert page.startswith("<b>flights</b> CREATED &middot; state in out/state<table>")


def test_html_escapes_what_users_wrote() -> None:
    bad = "<script>&"
    page = job_html(job(query(bad, State.FAILED, reason=bad), job=bad, state_directory=bad, error=bad))
    assert bad not in page
    assert page.count("&lt;script&gt;&amp;") == 5
