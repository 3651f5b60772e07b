"""`classify`: what is said of an exception, outside of a job as well."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ext.errors import refused
from spark_ext.failures.classifier import load
from spark_ext.failures.evidence import Evidence
from spark_ext.failures.labels import Response
from spark_ext.failures.text import evidence_of_text
from spark_ext.failures.verdict import Verdict
from spark_ext.spark.watching.failure_chain import evidence_of


@dataclass(frozen=True)
class Explanation:
    """What is said of a failure."""

    verdict: Verdict
    """Its type, whose it is, the guilty line."""
    decision: Response
    """What a job does about it."""
    evidence: Evidence
    """The exceptions that led to it."""


def classify(failure: BaseException | str, *, rules: str | None = None) -> Explanation:
    """Say of a failure what kind it is, whose it is, and what a job would do about it.

    An exception that pyspark has raised is read from the JVM, which has to be there. Text is the weakest evidence: a
    message can imitate anything.

    Args:
        failure: an exception; or a stack trace as text, of Java or Python, perhaps among other lines.
        rules: path of a file of rules that come before those of `conf/failures.yaml`.

    Raises:
        ConfigurationError: there is no exception in the text, or the file of rules is invalid.
    """
    classifier = load(rules)
    if isinstance(failure, str):
        evidence = evidence_of_text(failure, classifier.user_packages, marked=False)
        if evidence is None:
            raise refused(
                "there is no exception in the text",
                "classify",
                "give it a stack trace of Java or Python, with the line that names the exception",
                kept="nothing was changed",
            )
    else:
        evidence = getattr(failure, "evidence", None) or evidence_of(failure, classifier.user_packages)
    verdict = classifier.classify(evidence)
    return Explanation(verdict, classifier.decision(verdict.labels).do, evidence)
