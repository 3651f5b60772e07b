"""Rules and decisions: what a file may say, and that a broken one is refused with its line."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.errors import ConfigurationError
from spark_ext.failures.classifier import Classifier, load, shipped
from spark_ext.failures.evidence import Evidence, Link, Raised
from spark_ext.failures.labels import FailureType, Origin, Response
from spark_ext.failures.rules import read_rules
from spark_ext.failures.verdict import judged
from spark_ext.incidents.types import Incident, Severity
from spark_ext.jobs.job import Job
from spark_ext.metrics.catalogue import FAILURES
from spark_ext.metrics.tally import Tally
from spark_ext.model.dumps import is_dumped
from spark_ext.observing.job_incidents import JobIncidents
from spark_ext.queries.describe_failure import Diagnosis, diagnosed
from spark_ext.views.incidents import class_of
from tests.metrics.rows import incident
from tests.test_cli import spark_ext

TEXT = """\
rules:
  - name: theirs.quota
    type: RESOURCE
    labels: {team: billing}
    exception: shop.QuotaError
decisions:
  - when: {type: RESOURCE, team: billing}
    do: ask
"""


def of(kind: str, message: str = "", **given: str) -> Evidence:
    return Evidence((Raised("org.apache.spark.SparkException"), Raised(kind, message, Link.CAUSE, **given)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("was", "now", "line", "says"),
    [
        ("name: theirs.quota", "name: theirs.quota: x", 2, "mapping values are not allowed"),
        ("type: RESOURCE\n", "type: RESOURCES\n", 3, "rules.0.type"),
        ("exception: shop", "exeption: shop", 5, "rules.0.exeption"),
        ("    exception: shop.QuotaError\n", "", 2, "it matches every failure"),
        ("    exception: shop.QuotaError\n", "    errno: 2\n    message: full\n", 2, "text alone decides nothing"),
        ("    exception: shop.QuotaError\n", '    exception: a\n    message: "("\n', 2, "unterminated subpattern"),
        ("do: ask", "do: pray", 8, "decisions.0.do"),
        ("decisions:", "decision:", 6, "decision"),
        ("decisions:", "  - {name: theirs.quota, type: SINK, code: DATA}\ndecisions:", 6, "two rules 'theirs.quota'"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(was: str, now: str, line: int, says: str) -> None:
    assert was in TEXT
    with pytest.raises(ConfigurationError, match=f"mine.yaml, line {line}: .*{says}"):
        read_rules(TEXT.replace(was, now, 1), "mine.yaml")


def test_a_users_rules_and_decisions_come_first(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(TEXT)
    classifier = load(str(file))
    verdict = classifier.judge(of("shop.QuotaError"))
    assert (verdict.type, verdict.rule) == (FailureType.RESOURCE, "theirs.quota")
    assert verdict.labels == {"type": "RESOURCE", "origin": "spark", "team": "billing"}
    assert classifier.decision(verdict.labels).do is Response.ASK
    assert classifier.judge(of("java.net.ConnectException")).type is FailureType.NETWORK


OWN = """\
types:
  - {name: QUOTA, base: NETWORK}
  - {name: SLOW_API, base: USER_CODE}
rules:
  - {name: quota, type: QUOTA, labels: {team: billing}, exception: shop.QuotaError}
  - {name: api, type: SLOW_API, exception: shop.SlowError}
  - {name: refused, type: NETWORK, exception: shop.RefusedError}
decisions:
  - {when: {type: NETWORK, team: other}, do: stop}
  - {when: {type: QUOTA, team: billing}, do: restart once}
"""


@pytest.mark.parametrize(
    ("was", "now", "line", "says"),
    [
        ("name: QUOTA", "name: NETWORK", 2, "types.0.name: .*'NETWORK' is one of spark-ext's own names"),
        ("name: QUOTA", "name: UNKNOWN", 2, "'UNKNOWN' is one of spark-ext's own names"),
        ("name: QUOTA", "name: quota", 2, "'quota' is not a name of up to 64 capital letters"),
        ("name: QUOTA", "name: SLOW_API", 3, "two types 'SLOW_API'"),
        ("base: NETWORK", "base: SLOW_API", 2, "'SLOW_API' cannot be a base, which is one of: USER_CODE, "),
        ("base: NETWORK", "base: QUOTA", 2, "'QUOTA' cannot be a base"),
        ("base: NETWORK", "base: NETWROK", 2, "'NETWROK' cannot be a base"),
        ("type: QUOTA, l", "type: QUOTAS, l", 5, "rules.0.type: unknown type 'QUOTAS'; known are: .*, QUOTA, SLOW_API"),
        ("type: QUOTA, t", "type: [QUOTA, QUOTAS], t", 10, "decisions.1.when.type: unknown type 'QUOTAS'"),
        ("labels: {team", "labels: {base: SINK, team", 5, "the label 'base' is set by spark-ext"),
        ("types:\n", "types:\n" + "".join(f"  - {{name: T{n}, base: SINK}}\n" for n in range(49)), 1, "at most 50"),
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_is_refused_by_name(was: str, now: str, line: int, says: str) -> None:
    assert was in OWN
    with pytest.raises(ConfigurationError, match=f"mine.yaml, line {line}: .*{says}"):
        read_rules(OWN.replace(was, now, 1), "mine.yaml")


def test_a_type_of_the_users_is_treated_as_its_base_unless_named() -> None:
    classifier = Classifier(read_rules(OWN, "mine.yaml"))
    quota = classifier.judge(of("shop.QuotaError"))
    assert quota.type is FailureType.NETWORK
    assert quota.labels == {"type": "QUOTA", "base": "NETWORK", "origin": "spark", "team": "billing"}
    assert classifier.decision(quota.labels).do is Response.RESTART_ONCE
    # The row that names it does not apply: its base decides, by the user's rows and then the shipped ones.
    assert classifier.decision({**quota.labels, "team": "other"}).do is Response.STOP
    found = classifier.decision({**quota.labels, "team": "third"})
    assert (found.do, found.outage) == (Response.RESTART, True)
    assert classifier.decision(classifier.judge(of("shop.SlowError")).labels).do is Response.STOP
    assert "base" not in classifier.judge(of("shop.RefusedError")).labels


def test_a_failure_of_a_users_type_is_told_by_its_name(tmp_path: Path) -> None:
    """In the incident's fingerprint, on the command line, in metrics, and by what is done for its base."""

    def told(name: str) -> Diagnosis:
        rule = f"rules: [{{name: r, type: {name}, exception: builtins.RuntimeError}}]"
        rules = read_rules(f"types: [{{name: {name}, base: RESOURCE}}]\n{rule}", "mine.yaml")
        return diagnosed(RuntimeError("x"), "job 'j', query 'q'", 1, Classifier(rules), "q")

    one, other = told("QUOTA"), told("QUOTB")
    assert one.verdict.labels["type"] == "QUOTA" and one.fingerprint != other.fingerprint
    assert one.error.do.startswith("provide what was exhausted")
    row = incident("a", 1, **one.verdict.labels)
    (failures,) = [change.labels for change in Tally("j").take(row) if change.metric is FAILURES]
    assert failures == ("j", "q", "QUOTA", "spark")
    assert class_of({"type": "not a name"}) == class_of(None) == "UNKNOWN"
    assert is_dumped(Incident(
        incident_id="a", type="failure", severity=Severity.ERROR, operator="", at=row.at, what="", action="",
        labels=one.verdict.labels, fingerprint="",
    ))  # fmt: skip
    file, trace = tmp_path / "mine.yaml", tmp_path / "trace.txt"
    file.write_text(OWN.replace("shop.QuotaError", "builtins.ZeroDivisionError"))
    trace.write_text('Traceback (most recent call last):\n  File "/home/me/f.py", line 1, in f\nZeroDivisionError: x\n')
    done = spark_ext("classify", trace, "--rules", file)
    assert {"type:      QUOTA", "base:      NETWORK", "decision:  restart once"} <= set(done.stdout.splitlines())


def test_an_alert_on_an_unknown_type_is_refused_with_the_job(tmp_path: Path) -> None:
    file, alerts = tmp_path / "mine.yaml", tmp_path / "alerts.yaml"
    file.write_text(OWN)
    alerts.write_text("alerts: [{rule: availability below 99 % over 1 h, labels: {type: [QUOTA, SYSTEM]}}]")
    own = load(str(file))
    JobIncidents.load(str(alerts), own)
    with pytest.raises(ConfigurationError, match=r"alerts\.yaml: the alert .* has the unknown failure type 'QUOTA'"):
        Job(None, "shop", state=tmp_path / "state", incidents=str(alerts))  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load(str(tmp_path / "none.yaml"))


def test_the_shipped_file_decides_on_each_type() -> None:
    classifier = Classifier()
    found = {kind: classifier.decision({"type": kind.value, "origin": "spark"}).do for kind in FailureType}
    stop, restart, restore = Response.STOP, Response.RESTART, Response.RESTORE
    assert found == {
        FailureType.USER_CODE: stop, FailureType.USER_DATA: stop, FailureType.SERIALIZATION: stop,
        FailureType.CONFIGURATION: stop, FailureType.SOURCE: restart, FailureType.SINK: restart,
        FailureType.NETWORK: restart, FailureType.RESOURCE: restart, FailureType.STATE: restore,
        FailureType.CHECKPOINT: restore, FailureType.FENCED: stop, FailureType.CANCELED: stop,
        FailureType.SYSTEM: restart,
    }  # fmt: skip
    assert classifier.decision({"type": "SOURCE", "origin": "user", "code": "python"}).do is Response.RESTART_ONCE
    assert classifier.decision({"type": "SOURCE", "origin": "user"}).do is Response.RESTART
    assert classifier.decision({"type": "STATE", "cause": "definition changed"}).do is Response.ASK
    late = classifier.judge(of("x", condition="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY")).labels
    assert late["type"] == "STATE" and classifier.decision(late).do is Response.RESTART


def test_a_rule_expects_everything_of_one_exception() -> None:
    """A message of one exception and the class of another make no match."""
    text = "rules: [{name: full, type: RESOURCE, exception: java.io.IOException, message: No space}]"
    rules = read_rules(text, "mine.yaml")
    said = Raised("java.lang.IllegalStateException", "No space left")
    assert judged(Evidence((said, Raised("java.io.IOException", "", Link.CAUSE))), rules).rule == ""
    assert judged(Evidence((said, Raised("java.io.IOException", "No space left", Link.CAUSE))), rules).rule == "full"


@pytest.mark.parametrize("link", [Link.CONTEXT, Link.SUPPRESSED])
def test_what_was_only_being_handled_decides_nothing(link: Link) -> None:
    evidence = Evidence((Raised("builtins.KeyError"), Raised("builtins.ConnectionRefusedError", "", link)))
    assert judged(evidence, shipped()).type is FailureType.SYSTEM


def test_an_unknown_class_is_known_by_what_it_derives_from() -> None:
    evidence = Evidence((Raised("shop.Refused", bases=("builtins.ConnectionError", "builtins.OSError")),))
    found = judged(evidence, shipped())
    assert (found.type, found.origin) == (FailureType.NETWORK, Origin.SPARK)


SPARK = "org.apache.spark."
LOST = "Job aborted: Task 0 failed 4 times, most recent failure: Lost task 0.3 in stage 0.0 (TID 3) (h executor 3): "
LIES = (
    "ExecutorLostFailure (executor 3 exited) Reason: Command exited with code 137",
    "Python worker exited unexpectedly (crashed)", "TaskKilled (another attempt succeeded)",
    "Total size of serialized results is bigger than spark.driver.maxResultSize", "SparkContext was shut down",
)  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(
    "quoting",
    [
        Raised(f"{SPARK}SparkException", f"{LOST}shop.LostError: {{}}"),
        Raised(f"{SPARK}SparkException", "An exception was thrown: Traceback (most recent call last):\n  x\nE: {}"),
        Raised(f"{SPARK}sql.streaming.StreamingQueryException", "[STREAM_FAILED] terminated: {}"),
        Raised(f"{SPARK}SparkRuntimeException", "[USER_RAISED_EXCEPTION] {}", condition="USER_RAISED_EXCEPTION"),
    ],
    ids=["a task", "a traceback", "a query", "raise_error"],
)
def test_what_spark_quotes_of_a_users_message_decides_nothing(quoting: Raised, lie: str) -> None:
    evidence = Evidence((replace(quoting, message=quoting.message.format(lie)),))
    assert judged(evidence, shipped()).type in (FailureType.SYSTEM, FailureType.USER_CODE)
    assert evidence.exits == ()


def test_a_broken_file_is_refused_when_the_job_is_created(tmp_path: Path) -> None:
    """A start would have taken an incarnation before it looked at the file, and nobody would have ended that."""
    file = tmp_path / "mine.yaml"
    file.write_text(TEXT.replace("do: ask", "do: pray"))
    state = tmp_path / "state"
    with pytest.raises(ConfigurationError, match=r"mine\.yaml, line 8"):
        Job(None, "shop", state=state, failures=str(file))  # type: ignore[arg-type]
    assert not state.exists()
