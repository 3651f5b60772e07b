"""Errors say what, to whom, what was kept, what to do; they survive workers, the JVM and pickling."""

import pickle
import traceback

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext import errors
from spark_ext.errors import DataError, FencedError, JobFailedError, SparkExtError, TerminalError, from_text

kinds = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, SparkExtError) and kind is not JobFailedError
]
texts = st.text(max_size=40)


class TheirError(TerminalError):
    """An error of a connector from elsewhere."""


def rendered(error: SparkExtError) -> str:
    try:
        raise error
    except SparkExtError:
        return traceback.format_exc()


def parts(error: SparkExtError) -> tuple[object, ...]:
    return (type(error), error.what, error.operator, error.kept, error.do)


@given(st.sampled_from(kinds), texts, texts, texts, texts)
def test_one_survives_trace_and_pickle(kind: type[SparkExtError], what: str, operator: str, kept: str, do: str) -> None:
    error = kind(what, operator=operator, kept=kept, do=do)
    text = (
        "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed.\n"
        f"Caused by: org.apache.spark.api.python.PythonException: {rendered(error)}\n"
        "\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)\n"
    )
    back = from_text(text)
    assert back is not None
    pickled = pickle.loads(pickle.dumps(error))
    assert parts(back) == parts(pickled) == parts(error) and str(pickled) == str(error)


def test_a_failed_jobs_stack_survives_pickling() -> None:
    error = JobFailedError("it failed", operator="job 'j'", cause_text="a stack\nof lines")
    back = pickle.loads(pickle.dumps(error))
    assert (parts(back), back.cause_text) == (parts(error), "a stack\nof lines")


def test_the_last_error_counts_by_what_it_derives_from() -> None:
    try:
        try:
            raise DataError("the first")
        except DataError as first:
            raise FencedError("the last", do="nothing") from first
    except FencedError:
        back = from_text(traceback.format_exc())
    assert isinstance(back, FencedError)
    assert (back.what, back.do) == ("the last", "nothing")
    back = from_text(rendered(TheirError("theirs", kept="all")))
    assert isinstance(back, TerminalError)
    assert (back.what, back.kept) == ("theirs", "all")


@pytest.mark.parametrize(
    "text",
    [
        "", "java.lang.OutOfMemoryError: Java heap space",
        "org.apache.spark.SparkException: [STREAM_FAILED] Query failed", "ValueError: [DATA_LOST] not ours",
    ],
)  # fmt: skip
def test_what_is_not_ours_is_not_taken_for_it(text: str) -> None:
    assert from_text(text) is None


def test_an_error_shows_only_what_it_has() -> None:
    assert str(DataError("broken", do="mend it")) == "[DATA] broken\n  do:   mend it"


def test_each_kind_has_a_code_and_is_terminal_or_transient() -> None:
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert not any(issubclass(kind, TerminalError) and issubclass(kind, errors.TransientError) for kind in kinds)
