"""The file of incidents: what it may say, and that what is wrong is refused with its line."""

import ast
import re
import sys
from pathlib import Path

import pytest

from spark_ext import masking
from spark_ext.errors import ConfigurationError, EnvironmentProblem
from spark_ext.incidents.loading import listeners_of
from spark_ext.incidents.registry import AlertRule, load, read_registry, shipped
from spark_ext.incidents.types import Severity, fingerprint_of
from tests.incidents.made import registry

ROOT = Path(__file__).parents[2]


def test_each_type_that_the_code_reports_is_declared() -> None:
    reported = set()
    for text in (path.read_text(encoding="utf-8") for path in (ROOT / "spark_ext").rglob("*.py")):
        for call in ast.walk(ast.parse(text)) if ".incident(" in text else ():
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".incident"):
                reported |= {kind.value for kind in call.args[1:2] if isinstance(kind, ast.Constant)}
    assert len(reported) >= 9
    assert reported <= shipped().types.keys()


def test_each_shipped_type_has_a_runbook_with_its_three_parts() -> None:
    for name, type_ in shipped().types.items():
        page, _, anchor = type_.runbook.partition("#")
        text = (ROOT / page).read_text(encoding="utf-8")
        assert anchor == name
        section = re.search(rf"^## {name}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None, f"{page} has no section '{name}'"
        for part in ("**Means**", "**Look at**", "**Do**"):
            assert part in section[1], f"the runbook of '{name}' has no {part}"
    sections = set(re.findall(r"^## ([a-z_]+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE))
    assert sections == shipped().types.keys()


def test_the_file_of_the_page_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_HOOK", "hunter2-hunter2")
    page = (ROOT / "docs" / "notifications.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(types:.*?)```", page, re.DOTALL)
    found = read_registry(text, "incidents.yaml")
    assert found.own == {"late_prices"} and len(found.listeners) == 2 and found.alerts[0].below == pytest.approx(0.999)


def test_types_of_ones_own_come_beside_the_shipped_ones() -> None:
    found = registry()
    assert found.own == {"late", "lone", "noted", "told", "broken"}
    assert found.types.keys() == shipped().types.keys() | found.own
    assert found.of("late").window == 60_000
    assert [one.rank for one in (Severity.INFO, Severity.WARNING, Severity.ERROR, Severity.CRITICAL)] == [0, 1, 2, 3]
    assert load(None) is shipped()


def test_one_that_is_not_declared_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="unknown incident type 'lat'") as refused:
        registry().refuse_undeclared("lat", "job 'j'")
    assert "shop.yaml" in refused.value.do and "late" in refused.value.do
    with pytest.raises(ConfigurationError, match="'failure' is a type of incident that spark-ext itself reports"):
        registry().refuse_undeclared("failure", "job 'j'")
    with pytest.raises(ConfigurationError) as refused:
        shipped().refuse_undeclared("late", "job 'j'")
    assert "setting 'incidents'" in refused.value.do
    registry().refuse_undeclared("late", "job 'j'")


TYPE = "types:\n  - {name: late, severity: ERROR, description: Late.}\n"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("types:\n\t- x", 2, ""),
        ("typs: []", 1, "typs"),
        ("types:\n  - name: late\n    severity: BAD\n    description: x", 3, "severity"),
        ("types:\n  - name: Late\n    severity: INFO\n    description: x", 2, "name"),
        ("types:\n  - name: late\n    severity: INFO\n    description: x\n    window: soon", 5, "window"),
        (TYPE + "  - {name: late, severity: INFO, description: x}", 1, "duplicate type 'late'"),
        (TYPE + "  - {name: failure, severity: INFO, description: x}", 3, "'failure' is one of spark-ext's own"),
        (TYPE + "listeners:\n  - use: log\n    types: [lat]", 5, "unknown type 'lat'"),
        (TYPE + "listeners:\n  - use: log\n    severity: LOUD", 5, "severity"),
        (TYPE + "listeners:\n  - use: log\n    queue: 0", 5, "queue"),
        (TYPE + "listeners:\n  - use: log\n    options:\n      logger: ${NO_SUCH_VARIABLE}", 6, "NO_SUCH_VARIABLE"),
        ("alerts:\n  - rule: availability under 1 over 1 day", 2, "is not a rule such as"),
        ("alerts:\n  - rule: availability below 101 % over 1 day", 2, "at most 1"),
        ("alerts:\n  - rule: availability below 1.2.3 over 1 day", 2, "'1.2.3' is not a number"),
        ("alerts:\n  - rule: availability below 0.5 over a while", 2, "is not a duration"),
        ("alerts:\n  - {rule: availability below 0.5 over 1 h, type: failure}", 2, "a type with 'resolved: report'"),
        ("alerts:\n  - rule: availability below 0.5 over 1 h\n    type: nothing", 3, "'nothing' is none"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_registry(text, "shop.yaml")
    assert refused.value.what.startswith(f"shop.yaml, line {line}: ")
    assert says in refused.value.what
    assert refused.value.do == f"correct line {line} of shop.yaml"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read") as refused:
        load(str(tmp_path / "none.yaml"))
    assert refused.value.do == "correct the setting 'incidents'"


def test_a_rule_is_read() -> None:
    given = {"rule": "availability below 99.5 % over 7 days", "labels": {"type": "SYSTEM", "team": ["a", "b"]}}
    rule = AlertRule.model_validate(given)
    assert (rule.below, rule.over) == (0.995, 7 * 86_400_000)
    assert rule.labels == {"type": ("SYSTEM",), "team": ("a", "b")}
    assert AlertRule(rule="availability below 0.9 over 90 s").below == 0.9


def test_secrets_of_options_are_masked_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_HOOK", "hunter2-hunter2")
    text = "listeners:\n  - use: webhook\n    options: {url: 'https://x.invalid/', secret: '${SHOP_HOOK}'}\n"
    found = read_registry(text, "shop.yaml")
    assert found.listeners[0].options["secret"] == "hunter2-hunter2"
    assert "hunter2" not in repr(found)
    assert masking.mask("it is hunter2-hunter2") == "it is ***"
    with pytest.raises(ConfigurationError) as refused:
        listeners_of(read_registry("listeners: [{use: webhook, options: {secret: [hunter2hunter2]}}]", "shop.yaml"))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "line", "says"),
    [
        ("use: nosuch", 2, "unknown listener 'nosuch'"),
        ("use: 'no.such.module:Listener'", 2, "ModuleNotFoundError"),
        ("use: 'tests.incidents.made:Nothing'", 2, "has no attribute 'Nothing'"),
        ("use: 'builtins:object'", 2, "it has no method 'changed'"),
        ("use: log\n    options: {loger: x}", 2, "option 'loger'"),
        ("use: webhook\n    options: {url: 'ftp://x'}", 2, "does not begin with https://"),
        ("use: webhook\n    options: {url: 'http://example.org/'}", 2, "use https://, or insecure: true"),
        ("use: smtp\n    options: {host: h, sender: a@b, to: c@d, user: u}", 2, "'user' and 'password' belong"),
        ("use: prometheus\n    options: {port: 1}", 2, "option 'port'"),
    ],
)
def test_a_listener_that_cannot_be_made_is_refused_with_its_line(entry: str, line: int, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        listeners_of(read_registry(f"listeners:\n  - {entry}\n", "shop.yaml"))
    assert refused.value.what.startswith(f"shop.yaml, line {line}: ") and says in refused.value.what
    if "nosuch" in entry:
        assert "log, prometheus, smtp, webhook" in refused.value.do


def test_a_missing_library_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(EnvironmentProblem, match=r"shop\.yaml, line 2: .*prometheus_client") as refused:
        listeners_of(read_registry("listeners:\n  - use: prometheus\n", "shop.yaml"))
    assert "pip install 'spark-ext[metrics]'" in refused.value.do


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("row 17 of 0x7fab is late", "row 18 of 0x1 is late", True), ("it is late", "it is early", False),
        ("it is late\nat 12:00", "it is late\nat 12:01", True),
    ],
)  # fmt: skip
def test_numbers_and_further_lines_make_no_other_incident(one: str, other: str, same: bool) -> None:
    assert (fingerprint_of(one) == fingerprint_of(other)) is same
    assert fingerprint_of(one, {"a": "b"}) != fingerprint_of(one)
