"""The route that Prometheus scrapes: the metrics of the job that runs in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Header
from starlette.responses import Response

from spark_ext.server.problems import Problem, documented

if TYPE_CHECKING:
    from spark_ext.metrics.job_metrics import JobMetrics

_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Metrics, in the format that Accept asks for.",
        "content": {"text/plain": {}, "application/openmetrics-text": {}},
    }
}


def metrics_routes(metrics: Callable[[], JobMetrics | None]) -> APIRouter:
    """The route.

    Args:
        metrics: returns those of the job that runs in this process; None: there are none.
    """
    router = APIRouter(tags=["server"])

    @router.get(
        "/metrics",
        response_class=Response,
        responses=_ANSWER | documented(),
        summary="Metrics for Prometheus",
    )
    def scrape(
        accept: Annotated[str, Header(description="text/plain, or OpenMetrics.", max_length=2_000)] = "",
    ) -> Response:
        found = metrics()
        if found is None:
            raise Problem(
                404,
                "no_metrics",
                "no job that is measured runs in the process of this server",
                "start the job with the setting metrics=True, and serve it from its driver, with job.serve()",
            )
        from spark_ext.metrics.prometheus import Exposition

        text, content_type = Exposition(lambda: [found]).text(accept)
        return Response(text, headers={"Content-Type": content_type})

    return router
