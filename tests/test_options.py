"""Options are declared once, and refused early with the operator, the name and a way out."""

from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from spark_ext import masking
from spark_ext.clients.postgres.connection import ConnectionOptions, Server
from spark_ext.errors import ConfigurationError
from spark_ext.options import (
    UID,
    Bytes,
    CommaSeparated,
    Milliseconds,
    Names,
    Options,
    Pairs,
    byte_count,
    milliseconds,
    written_to,
)
from spark_ext.queries import operators
from spark_ext.sources.contract import SourceOptions
from spark_ext.spark.session import formats
from tests.sources.memory import Memory


class Some(Options):
    secret_fields = frozenset({"headers"})

    path: str | None = None
    max_rows: int | None = Field(default=None, gt=0)
    password: str | None = None
    headers: str | None = None
    wait: Milliseconds = 100
    size: Bytes = 0


def parse(**raw: str) -> Some:
    return Some.parse("some", {"uid": "u", **raw})


def refused(**raw: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as found:
        parse(**raw)
    assert found.value.kept and found.value.do
    return found.value


def test_names_are_taken_in_any_case_and_sparks_own_passed_over() -> None:
    assert parse(MAX_ROWS="5", Path="x") == Some(uid="u", max_rows=5, path="x")
    assert parse(checkpointLocation="/c", queryName="q", path="/p").path == "/p"


def test_a_missing_uid_is_refused() -> None:
    for raw in ({}, {"uid": ""}):
        with pytest.raises(ConfigurationError, match="'uid' is missing") as found:
            Some.parse("some", raw)
        assert "some" in found.value.operator


@pytest.mark.parametrize("uid", ["a/b", "../x", ".hidden", "a b", "é", "x" * 129, "a\n", "-a"])
def test_a_uid_that_cannot_be_a_file_name_is_refused(uid: str) -> None:
    assert UID.fullmatch(uid) is None
    with pytest.raises(ConfigurationError, match="uid"):
        Some.parse("some", {"uid": uid})


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    error = refused(max_row="5")
    assert "did you mean 'max_rows'" in error.what
    assert "some u" in error.operator
    assert "max_rows" in error.do


def test_a_bad_value_is_shown_and_a_bad_secret_is_not() -> None:
    assert "'0'" in refused(max_rows="0").what

    class Secretive(Options):
        secret_fields = frozenset({"pin"})
        pin: int

    with pytest.raises(ConfigurationError) as found:
        Secretive.parse("some", {"uid": "u", "pin": "hunter2"})
    assert "hunter2" not in str(found.value)


def test_options_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        parse().path = "y"


def test_public_options_mask_what_is_secret_and_show_the_rest() -> None:
    public = parse(password="p", headers="h", path="x").public()
    assert (public["password"], public["headers"], public["path"], public["uid"]) == ("***", "***", "x", "u")
    assert Some(uid="u").public()["password"] is None


@pytest.mark.parametrize(
    "name",
    ["password", "DB_PASSWORD", "secret", "aws_secret_access_key", "token", "apiKey", "api_key", "credentials",
     "access_key", "accessKey", "dsn", "sas", "kafka.sasl.jaas.config", "fs.s3a.access.key", "fs.azure.account.key.x",
     "Authorization", "kafka.ssl.keystore.passphrase", "passwd"],
)  # fmt: skip
def test_options_that_go_into_the_ledger_are_masked_by_name(name: str) -> None:
    others = dict.fromkeys(["path", "max_rows", "sasquatch", "format"], "value")
    assert operators.public_options("elsewhere", {name: "hunter2", **others}) == {name: "***", **others}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:hunter2@db:5432/x", "postgresql://ann:***@db:5432/x"),
        ("postgresql://ann@db/x", "postgresql://ann@db/x"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("postgresql://ann:hun@ter/2@db/x", "postgresql://ann:***@db/x"),
        ("https://h/in?v=1&api_key=hunter2&n=3", "https://h/in?v=1&api_key=***&n=3"),
        ("https://h/in?sig=hunter2", "https://h/in?sig=***"),
        ("jdbc:postgresql://h/x?user=ann&password=hunter2", "jdbc:postgresql://h/x?user=ann&password=***"),
        ("jdbc:sqlserver://h;user=ann;password=hunter2;b=true", "jdbc:sqlserver://h;user=ann;password=***;b=true"),
        ("a sentence; key=value", "a sentence; key=value"),
    ],
)
def test_a_password_inside_an_address_is_masked(url: str, shown: str) -> None:
    assert operators.public_options("elsewhere", {"url": url}) == {"url": shown}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ALTER ROLE app PASSWORD 'hunter2'", "ALTER ROLE app PASSWORD ***"),
        ("OPTIONS (user 'ann', password E'hunter2')", "OPTIONS (user 'ann', password E***)"),
        ("SELECT * FROM dblink('host=db password=hunter2', 'x')", "SELECT * FROM dblink('host=db password=***', 'x')"),
        ("api_key = 'hunter2' AND day = 'monday'", "api_key = *** AND day = 'monday'"),
        ("SELECT set_config('app.token', 'hunter2', false)", "SELECT set_config('app.token', ***, false)"),
        ("""CALL f('{"secret": "hunter2"}')""", """CALL f('{"secret": ***}')"""),
        ("-c app.password=hunter2 -c x=y", "-c app.password=*** -c x=y"),
        ("SET password_encryption = 'scram-sha-256'", "SET password_encryption = 'scram-sha-256'"),
        ("a.token = b.token", "a.token = b.token"),
    ],
)
@pytest.mark.parametrize("option", ["query", "where", "setup_sql", "pre_sql", "post_sql", "options"])
def test_a_password_inside_a_statement_is_masked(option: str, text: str, shown: str) -> None:
    masking.forget()
    assert operators.public_options("elsewhere", {option: text}) == {option: shown}
    operators.keep_secret("elsewhere", {option: text})
    assert masking.mask("hunter2, monday, b.token") == f"{'***' if '***' in shown else 'hunter2'}, monday, b.token"


def test_a_password_in_the_options_of_libpq_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    for dsn in ("host=h options='-c app.password=hunter2'", "postgresql://h/?options=-c%20app.password%3Dhunter2"):
        masking.forget()
        Server.of(ConnectionOptions(uid="u", dsn=dsn), "sink 'u'")
        assert masking.mask("invalid argument: app.password=hunter2") == "invalid argument: app.password=***"
    monkeypatch.setenv("PGOPTIONS", "-c app.password=hunter3")
    Server.of(ConnectionOptions(uid="u"), "sink 'u'")
    assert masking.mask("hunter3") == "***"


def test_a_formats_secrets_are_masked_in_the_ledger_too() -> None:
    class Secretive(Memory):
        options_type = type("SecretiveOptions", (SourceOptions,), {"secret_fields": frozenset({"headers"})})

        @classmethod
        def name(cls) -> str:
            return "secretive"

    formats.add(Secretive)
    assert operators.public_options("secretive", {"Headers": "hunter2", "x": "y"}) == {"Headers": "***", "x": "y"}


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("250", 250), (250, 250), ("500 ms", 500), ("90 s", 90_000), ("1 hour", 3_600_000), (" 2 min ", 120_000),
     ("1.5 s", 1500), ("1 day", 86_400_000), ("1h30m", 5_400_000)],
)  # fmt: skip
def test_durations(text: object, ms: int) -> None:
    assert milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "soon", "-1 s", "-5", -5, "1.5", "NaT", "nan", "1 pc", "²", "9999999999999 days"])
def test_bad_durations(text: object) -> None:
    with pytest.raises(ValueError):
        milliseconds(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1048576", 2**20), (7, 7), ("64k", 2**16), ("64 KiB", 2**16), ("128m", 2**27), ("1G", 2**30),
     ("2 tb", 2**41), ("10 b", 10)],
)  # fmt: skip
def test_sizes(text: object, size: int) -> None:
    assert byte_count(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1.5g", "1 x"])
def test_bad_sizes(text: object) -> None:
    with pytest.raises(ValueError):
        byte_count(text)


class Several(Options):
    names: Names = ()
    numbers: Annotated[tuple[int, ...] | None, CommaSeparated] = None
    pairs: Pairs = Field(default_factory=dict)


def several(**raw: str) -> Several:
    return Several.parse("several", {"uid": "u", **raw})


def test_values_separated_by_commas() -> None:
    assert several(names=" day, carrier ,,").names == ("day", "carrier")
    assert several(names="").names == several().names == ()
    assert several(numbers="1000, 0").numbers == (1000, 0)
    assert several().numbers is None
    with pytest.raises(ConfigurationError, match="numbers"):
        several(numbers="1,x")


@pytest.mark.parametrize("text", ["day", "[1]", '{"a": 1}', "null"])
def test_what_is_not_an_object_of_strings_is_refused(text: str) -> None:
    assert several(pairs='{"a": "1"}').pairs == {"a": "1"}
    with pytest.raises(ConfigurationError, match="not a JSON object of strings"):
        several(pairs=text)


def test_an_operator_writes_where_its_options_say() -> None:
    given = {"Path": "out", "bad_rows_PATH": "bad", "uid": "x"}
    assert written_to(given, sink=True) == ["out", "bad"]
    assert written_to(given, sink=False) == ["bad"], "a source reads from its path"
    assert written_to({"path": ""}, sink=True) == []
