"""How a task finds what is in force in its epoch: from stamps, the same for all tasks, at little cost."""

import json
import logging
import os
import pickle
import subprocess
import sys
import time
import timeit
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

import spark_ext as sx
from spark_ext import masking
from spark_ext.control import levels, stamps
from spark_ext.errors import StateError
from spark_ext.model.configuration import Configuration, Stamp
from spark_ext.model.control import Event
from spark_ext.model.offsets import SourceOffset
from tests.control.tasks import Epochs, note, setting


@pytest.fixture
def epochs(tmp_path: Path) -> Epochs:
    return Epochs(tmp_path)


def seen(epochs: Epochs, epoch: int, start: str = "1") -> list[int]:
    with epochs.task(epoch, start=start):
        return [event.sequence for event in sx.control.events()]


def test_the_configuration_begins_empty_and_cannot_be_changed(epochs: Epochs) -> None:
    first, second = epochs.add(SourceOffset("in")), epochs.stamped("in", [setting(1, "list", [1]), setting(2, "n", 7)])
    with epochs.task(first):
        assert dict(sx.control.config()) == {} and sx.control.events() == ()
    with epochs.task(epochs.add(second)):
        found = sx.control.config()
        assert not hasattr(found, "__setitem__")
        found["list"].append(2)
        assert dict(sx.control.config()) == {"list": [1], "n": 7}


def test_of_two_sources_the_one_that_has_looked_last_counts(epochs: Epochs) -> None:
    ahead = epochs.stamped("a", [setting(1, "k", "old"), setting(2, "k", "new")])
    behind = epochs.stamped("b", [setting(1, "k", "old")])
    for offsets in ((ahead, behind), (behind, ahead), (ahead, SourceOffset("b"))):
        with epochs.task(epochs.add(*offsets)):
            assert sx.control.config()["k"] == "new"


def test_an_event_belongs_to_the_first_epoch_that_obeys_it(epochs: Epochs) -> None:
    none = SourceOffset("b")
    a = epochs.stamped("a", [note(1), note(2)])
    late = epochs.stamped("b", [note(1), note(2), note(3)])
    numbers = [epochs.add(*offsets) for offsets in ((SourceOffset("a"), none), (a, none), (a, none), (a, late))]
    assert [seen(epochs, number) for number in numbers] == [[], [1, 2], [], [3]]
    # The same on a replay, in a later start and in any order.
    assert [seen(epochs, number, start="2") for number in reversed(numbers)] == [[3], [], [1, 2], []]


def test_events_of_the_first_epoch(epochs: Epochs) -> None:
    with epochs.task(epochs.add(epochs.stamped("a", [note(4)]))):
        (event,) = sx.control.events("note")
        assert sx.control.events("other") == ()
    assert (event.type, event.value, event.sequence, event.event_id) == ("note", 4, 4, "e4")
    assert event.at == datetime(1970, 1, 1, 0, 0, 4, tzinfo=timezone.utc)


def test_a_checkpoint_begun_anew_under_its_old_path_is_reread(epochs: Epochs, tmp_path: Path) -> None:
    epoch = epochs.add(epochs.stamped("a", [setting(1, "k", 1)]))
    with epochs.task(epoch):
        assert sx.control.config()["k"] == 1
    (epochs.checkpoint / "offsets" / str(epoch)).unlink()
    epochs._number = 0
    epochs.add(epochs.stamped("a", [setting(1, "k", 2)]))
    with epochs.task(epoch, start="2"):
        assert sx.control.config()["k"] == 2


def test_what_is_missing_or_damaged_is_an_error_by_name(epochs: Epochs) -> None:
    with epochs.task(5), pytest.raises(StateError, match="offsets/5 is missing") as missing:
        sx.control.config()
    assert "lab" in missing.value.operator and str(epochs.checkpoint) in missing.value.do
    offset = epochs.stamped("a", [setting(1, "k", 1), note(2)])
    epochs.add(offset)
    second = epochs.add(offset)
    (epochs.checkpoint / "offsets" / "0").unlink()
    with epochs.task(second):
        assert sx.control.config()["k"] == 1
        with pytest.raises(StateError, match="offsets/0 is missing"):
            sx.control.events()
    stamp = next((epochs.checkpoint / "control").glob("*.json"))
    changed = stamp.read_text().replace('"version":1', '"version":2')
    stamp.unlink()
    stamps.read.cache_clear()  # another process
    with epochs.task(second, start="2"), pytest.raises(StateError, match=f"{stamp.name}, .* is missing"):
        sx.control.config()
    stamp.write_text(changed)
    with epochs.task(second, start="3"), pytest.raises(StateError, match=f"{stamp.name}, .* was changed"):
        sx.control.config()


def level(sequence: int, name: str, logger: str = "") -> Event:
    return Event(sequence, f"e{sequence}", "log_level", value={"level": name, "logger": logger})


@pytest.fixture
def ordinary() -> Iterator[None]:
    yield
    levels.apply({})


@pytest.mark.usefixtures("ordinary")
def test_a_logger_follows_the_level_of_the_epoch(epochs: Epochs) -> None:
    log = sx.control.logger("lab.part.piece")
    other, root = logging.getLogger("lab.other"), logging.getLogger()
    before = root.level
    quiet = epochs.add(SourceOffset("in"))
    loud = epochs.add(epochs.stamped("in", [level(1, "DEBUG", "lab.part"), level(2, "ERROR", "lab.other")]))
    trace = epochs.add(epochs.stamped("in", [level(1, "OFF"), level(2, "TRACE", "lab.part.piece")]))
    assert not log.isEnabledFor(logging.DEBUG)
    with epochs.task(loud):
        assert log.isEnabledFor(logging.DEBUG) and not log.isEnabledFor(5)
        assert not other.isEnabledFor(logging.WARNING) and other.isEnabledFor(logging.ERROR)
    with epochs.task(trace):
        assert log.isEnabledFor(5)
        assert not root.isEnabledFor(logging.CRITICAL)
    with epochs.task(quiet):
        assert not log.isEnabledFor(logging.DEBUG)
        assert other.isEnabledFor(logging.WARNING) == logging.getLogger("never mentioned").isEnabledFor(logging.WARNING)
    assert root.level == before


@pytest.mark.usefixtures("ordinary")
@pytest.mark.parametrize("named", ["", "py4j.clientserver"])
def test_levels_show_no_secret(named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    masking.remember("hunter2-known")
    levels.apply({"": "DEBUG"} | ({named: "DEBUG"} if named else {}))
    logging.getLogger("py4j.clientserver").debug("Answer received: !yshunter2-known hunter2-unknown")
    logging.getLogger("of.somebody").debug("connecting with %s", "hunter2-known")
    said = capsys.readouterr().err
    assert "connecting with ***" in said and "hunter2-known" not in said
    assert ("hunter2-unknown" in said) is bool(named), "whoever names it wants to see it"


def test_a_logger_keeps_its_kind_in_another_process() -> None:
    log = sx.control.logger("lab.pickled")
    assert pickle.loads(pickle.dumps(log)) is log
    code = "import pickle, sys; print(type(pickle.load(sys.stdin.buffer)).__name__)"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(log), capture_output=True, check=True)
    assert done.stdout.decode().strip() == "EpochLogger"


def test_a_further_call_reads_nothing_and_takes_microseconds(epochs: Epochs) -> None:
    with epochs.task(epochs.add(epochs.stamped("in", [setting(1, "k", 1)]))):
        assert sx.control.config()["k"] == 1
        for file in (epochs.checkpoint / "offsets").iterdir():
            file.unlink()
        per_call = min(timeit.repeat(sx.control.config, number=1000, repeat=20)) / 1000
        assert sx.control.config()["k"] == 1
    assert per_call < 20e-6, f"{per_call * 1e6:.2f} us"


NAMES = ["config", "emit", "events", "logger", "value"]
OF_WORKERS = f"""import spark_ext as sx; [getattr(sx.control, name) for name in {NAMES}]
import spark_ext.sources.control_events, spark_ext.sources.control_stamp"""


# delta-rs fails in a process that was forked from one that has used it.
@pytest.mark.parametrize(
    ("code", "without"),
    [
        (OF_WORKERS, {"deltalake", "pandas", "fastapi", "jsonschema"}),
        ("import spark_ext.control", {"pyspark", "pyarrow", "pydantic", "deltalake"}),
    ],
    ids=["workers", "the package alone"],
)
def test_what_is_not_needed_is_not_imported(code: str, without: set[str]) -> None:
    code += "\nimport json, sys; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(json.loads(done.stdout)) & without


DAY = 86_400.0


def stamp(sequence: int) -> Stamp:
    return Stamp(Configuration(sequence, {"pause": {"job": {"": None}}}), sequence - 1)


def test_a_stamp_is_read_as_it_was_written_and_written_once(tmp_path: Path) -> None:
    place = str(tmp_path)
    name = stamps.write(place, stamp(5).text())
    assert stamps.write(place, stamp(5).text()) == name == stamp(5).name
    assert stamps.read(place, name) == stamp(5)
    assert [file.name for file in (tmp_path / "control").iterdir()] == [f"{name}.json"]


def test_the_greatest_sequence_of_the_sources_counts(tmp_path: Path) -> None:
    place = str(tmp_path)
    offsets = [
        SourceOffset(f"s{number}", control=number, stamp=stamps.write(place, stamp(number).text()))
        for number in (3, 9, 4)
    ]
    assert stamps.configuration(place, [*offsets, SourceOffset("ended")]).sequence == 9
    assert stamps.configuration(place, [SourceOffset("ended")]) == Configuration()


def test_a_question_is_decided_once(tmp_path: Path) -> None:
    assert stamps.decide(str(tmp_path), "expiry-1-5", "late") == "late"
    assert stamps.decide(str(tmp_path), "expiry-1-5", "in time") == "late"


def test_old_stamps_are_deleted_unless_an_offset_names_them(tmp_path: Path) -> None:
    place = str(tmp_path)
    names = {number: stamps.write(place, stamp(number).text()) for number in (1, 2, 3)}
    stamps.decide(place, "expiry-1-1", "late")
    for number in (1, 2):
        os.utime(tmp_path / "control" / f"{names[number]}.json", (time.time() - 2 * DAY,) * 2)
    os.utime(tmp_path / "control" / "expiry-1-1.txt", (time.time() - 2 * DAY,) * 2)
    (tmp_path / "offsets").mkdir()
    line = json.dumps(SourceOffset("s", control=2, stamp=names[2]).to_json())
    (tmp_path / "offsets" / "7").write_text(f"v1\n{{}}\n{line}")
    assert stamps.sweep(place, 3 * DAY) == 0
    assert stamps.sweep(place, DAY) == 2
    assert {file.stem for file in (tmp_path / "control").iterdir()} == {names[2], names[3]}
    (tmp_path / "offsets" / "7").unlink()
    assert stamps.sweep(place, DAY) == 0, "it was in force until now"
