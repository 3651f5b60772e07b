"""Failures: what is known of one, what kind it is and whose it is, and what is done about it.

    @sx.failures.plugin("team")
    def team(failure):
        return {"team": "billing"} if "billing" in failure.verdict.place else {}

Names are loaded on first use: Python workers import a part of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_ext.failures.classifier import Failure as Failure
    from spark_ext.failures.classifier import plugin as plugin
    from spark_ext.failures.evidence import Evidence as Evidence
    from spark_ext.failures.evidence import Frame as Frame
    from spark_ext.failures.evidence import Raised as Raised
    from spark_ext.failures.labels import FailureType as FailureType
    from spark_ext.failures.labels import Origin as Origin
    from spark_ext.failures.labels import Response as Response
    from spark_ext.failures.verdict import Verdict as Verdict

_PLACES = {
    "Evidence": "evidence:Evidence",
    "Failure": "classifier:Failure",
    "FailureType": "labels:FailureType",
    "Frame": "evidence:Frame",
    "Origin": "labels:Origin",
    "Raised": "evidence:Raised",
    "Response": "labels:Response",
    "Verdict": "verdict:Verdict",
    "plugin": "classifier:plugin",
}

__all__ = ["Evidence", "Failure", "FailureType", "Frame", "Origin", "Raised", "Response", "Verdict", "plugin"]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'spark_ext.failures' has no attribute {name!r}")
    module, _, attribute = place.partition(":")
    found = getattr(import_module(f"spark_ext.failures.{module}"), attribute)
    globals()[name] = found
    return found
