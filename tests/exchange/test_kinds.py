"""Kinds of exchanges: found by name, with options that hold no secret, and refused by name before a start."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_ext.clients.library import referenced
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.exchange import kinds
from spark_ext.exchange.arrow import ArrowKind
from spark_ext.exchange.contract import ExchangeKind, as_text
from spark_ext.exchange.kafka.topics import KafkaExchangeOptions
from spark_ext.exchange.kinds import checked_options, described_at, kind_named, parts, parts_at
from spark_ext.jobs.exchange import Exchange
from spark_ext.testing.exchange_driver import ROWS, WHO, Place, Producer
from tests.exchange.sqlite_package import installed

GROUP = kinds.GROUP


class NotAKind:
    name = "wrong"


class HalfAKind(ExchangeKind):  # type: ignore[type-arg]
    name = "half"


class Misnamed(ArrowKind):
    name = "other"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_known", {})
    monkeypatch.setattr(kinds, "_alone", set())


def package(folder: Path, name: str, *kinds: str) -> Path:
    """An installed package with entry points and nothing else."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{one}\n" for one in kinds))
    return folder


@pytest.fixture
def two_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    here = f"{__name__}:"
    monkeypatch.syspath_prepend(
        package(
            tmp_path / "a",
            "first",
            *(f"twice = {here}ArrowKind", f"wrong = {here}NotAKind", f"half = {here}HalfAKind"),
            *(f"misnamed = {here}Misnamed", "missing = nowhere_at_all:Kind"),
        )
    )
    monkeypatch.syspath_prepend(package(tmp_path / "b", "second", f"twice = {here}ArrowKind", "delta = x:Y"))
    yield


@pytest.mark.usefixtures("two_packages")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other", r"unknown exchange kind 'other'.*arrow, delta, .*kafka, .*twice.*install the package"),
        ("twice", "several packages have an exchange kind 'twice': first, second.*uninstall all but one"),
        ("delta", "several packages have an exchange kind 'delta': second, spark-ext"),
        ("wrong", r"'wrong' \(.*NotAKind\) does not implement spark_ext.exchange.contract.ExchangeKind"),
        ("half", "does not implement"),
        ("misnamed", "calls itself 'other'"),
        ("missing", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_x8_kinds_that_cannot_be_used_are_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){message}") as caught:
        checked_options(name, {}, WHO)
    assert (caught.value.operator, caught.value.kept) == (WHO, "nothing was started")


def test_x8_options_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    servers = {"bootstrap_servers": "broker:9092"}
    given = as_text({**servers, "topic_partitions": 8, "client_options": {"sasl.password": "${KAFKA_PASSWORD}"}})
    assert checked_options("kafka", given, WHO) == given
    cases: list[tuple[str, Mapping[str, str], str]] = [
        (
            "arrow",
            {"folder": "x"},
            "option 'folder' of the exchange kind 'arrow': Extra inputs.*use: none, as the kind has no",
        ),
        ("kafka", {}, "option 'bootstrap_servers' of the exchange kind 'kafka': Field required"),
        ("kafka", {**servers, "topic_partitions": "0"}, "option 'topic_partitions'.*greater than 0"),
        ("kafka", {**servers, "client_options": '{"acks": 1, "group.id": "x"}'}, "'group.id' is set by the connector"),
    ]
    for kind, options, message in cases:
        with pytest.raises(ConfigurationError, match=f"(?s){message}"):
            checked_options(kind, options, WHO)
    for settings in ({"sasl.password": "s3cret"}, {"ssl.key.pem": "s3cret"}, {"x": "postgres://me:s3cret@host"}):
        with pytest.raises(ConfigurationError, match="holds a secret, and would be stored") as caught:
            checked_options("kafka", {**servers, **as_text({"client_options": settings})}, WHO)
        assert "s3cret" not in str(caught.value) and "'client_options'" in str(caught.value)
        assert "env:NAME, file:PATH or ${NAME}" in caught.value.do
    (tmp_path / "secret").write_text("from-file\n")
    monkeypatch.setenv("KAFKA_PASSWORD", "from-variable")
    references = {"a": "${KAFKA_PASSWORD}", "b": "env:KAFKA_PASSWORD", "c": f"file:{tmp_path}/secret", "d": "plain"}
    made = KafkaExchangeOptions.parse("kafka", {**servers, **as_text({"client_options": references})}, WHO)
    found = made.client(WHO)
    assert [found[name] for name in "abcd"] == ["from-variable", "from-variable", "from-file", "plain"]
    assert os.environ["KAFKA_PASSWORD"] not in repr(made)
    with pytest.raises(ConfigurationError, match=r"(?s)'x' is in env:NOT_SET, which cannot be read.*driver and the"):
        referenced("env:NOT_SET", "x", WHO)


def test_the_kind_at_a_place(tmp_path: Path) -> None:
    assert described_at(str(tmp_path / "nothing"), WHO) is None
    assert parts_at(str(tmp_path / "nothing"), WHO).master.describe() is None
    for kind in ("arrow", "delta"):
        place = Place(kind, str(tmp_path / kind))
        Producer(place).claim()
        about = described_at(place.path, WHO)
        assert about is not None and about == parts_at(place.path, WHO).master.describe()
        assert (about.kind, about.options) == (kind, {})
    with pytest.raises(ConfigurationError, match="use the kind 'delta'"):
        parts("arrow", "s3://bucket/exchange", WHO)
    (tmp_path / "arrow" / "exchange.json").unlink()
    with pytest.raises(StateError, match=r"and no exchange\.json"):
        parts_at(str(tmp_path / "arrow"), WHO).master.describe()


def exchange(state: Path, kind: str | None = None, default: str = "arrow", **given: object) -> Exchange:
    defaults: dict[str, object] = {"bootstrap_servers": "a:1"} if default == "kafka" else {}
    settings: dict[str, Any] = {"key": (), "max_in_flight": None, "keep": 0, "schema": ROWS}
    spark: Any = None
    return Exchange(
        spark, "j", str(state), "x", partitions=3, kind=kind, options=given, default=(default, defaults), **settings
    )


def test_x8_an_exchange_keeps_its_kind(tmp_path: Path) -> None:
    made = exchange(tmp_path, default="kafka")
    assert (made.kind, made.options) == ("kafka", {"bootstrap_servers": "a:1"})
    about = made.descriptor("j1")
    assert about is not None and about.options == made.options
    assert exchange(tmp_path, "kafka", bootstrap_servers="b:1").options == {"bootstrap_servers": "b:1"}
    Producer(Place("arrow", str(tmp_path / "exchanges" / "x"))).claim()
    for default in ("arrow", "kafka", "delta"):
        kept = exchange(tmp_path, default=default)
        assert (kept.kind, kept.options) == ("arrow", {}), "whatever the default is by now"
    wanted = exchange(tmp_path, "kafka", bootstrap_servers="b:1").descriptor("job-1")
    assert wanted is not None
    with pytest.raises(StateError, match="has an exchange of the kind 'arrow', and no 'kafka'"):
        parts("kafka", str(tmp_path / "exchanges" / "x"), WHO, wanted.options).master.register(wanted)
    with pytest.raises(ConfigurationError, match=r"(?s)options are given, and no kind.*name the kind"):
        exchange(tmp_path, timeout=3)
    with pytest.raises(ConfigurationError, match="setting 'exchange_kind'"):
        checked_options("nowhere", {}, "job 'j', setting 'exchange_kind'")


def test_a_kind_of_another_package_is_found_by_its_entry_point() -> None:
    with installed():
        assert kind_named("sqlite", WHO).name == "sqlite"
