"""A listener that posts to Slack when something is wrong with a job, and when it is well again.

`incidents.yaml` beside this file names it. The file has to be in a folder of PYTHONPATH.
"""

from __future__ import annotations

import json
import urllib.request

from spark_ext.listeners.contract import IncidentChange, IncidentListener, MetricsContext


class Slack(IncidentListener):
    """Posts each change to an incoming webhook of Slack."""

    def __init__(self, url: str) -> None:
        self._url = url

    def changed(self, change: IncidentChange, context: MetricsContext) -> None:
        incident = change.incident
        text = f"*{change.new.value}* {incident.severity.value} {incident.operator}: {incident.what}\n{incident.action}"
        body = json.dumps({"text": text}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10).close()
