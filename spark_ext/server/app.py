"""The application: routes, errors as problems, and the description of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from spark_ext.errors import SparkExtError
from spark_ext.masking import logger, mask
from spark_ext.server import answers
from spark_ext.server.bodies import body_schema
from spark_ext.server.control_routes import control_routes
from spark_ext.server.guard import caller_of
from spark_ext.server.history_routes import history_routes
from spark_ext.server.job_routes import job_routes, summary
from spark_ext.server.limits import Slots
from spark_ext.server.page_routes import page_routes
from spark_ext.server.problems import Problem, ProblemBody, documented

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_ext.metrics.job_metrics import JobMetrics
    from spark_ext.server.limits import Limits
    from spark_ext.server.served import ServedJobs

log = logger("spark_ext.server")


def create_app(
    jobs: ServedJobs, limits: Limits, version: str, metrics: Callable[[], JobMetrics | None] = lambda: None
) -> FastAPI:
    """The application, without what guards it; `metrics` are those of the job that runs in this process, if any."""
    app = FastAPI(
        title="spark-ext",
        version=version,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(_known_parameters)],
    )

    @app.get("/health", response_model=answers.Health, responses=_only(403, 429), tags=["server"], summary="It runs")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get(
        "/ready", response_model=answers.Ready, responses=documented(), tags=["server"], summary="It can read all jobs"
    )
    def ready() -> dict[str, Any]:
        return {"status": "ready", "jobs": [name for name in (job.known().name for job in jobs.all) if name]}

    @app.get(
        "/v1/jobs",
        response_model=answers.JobList,
        responses=documented(),
        tags=["jobs"],
        summary="All jobs of this server",
    )
    def all_jobs() -> dict[str, Any]:
        return {"jobs": [summary(known) for known in (job.known() for job in jobs.all) if known.name]}

    @app.get("/openapi.json", include_in_schema=False)
    def description() -> Response:
        return JSONResponse(app.openapi())

    app.include_router(metrics_routes(metrics))
    app.include_router(job_routes(jobs))
    slots = Slots(limits.waiting, limits.waiting_each)
    app.include_router(control_routes(jobs, limits, slots))
    app.include_router(page_routes(jobs, slots))
    app.include_router(history_routes(jobs, slots))
    app.openapi = lambda: _description(app)  # type: ignore[method-assign]
    _handle_errors(app)
    return app


async def _known_parameters(request: Request) -> None:  # else it would need another thread, at each request
    """Refuse parameters that a route does not have: a filter with a typing mistake would have no effect."""
    known = {one.alias for one in request.scope["route"].dependant.query_params}
    if unknown := sorted(set(request.query_params) - known):
        raise Problem(
            422,
            "parameter",
            f"unknown parameters: {', '.join(unknown)[:200]}",
            f"use: {', '.join(sorted(known)) or 'none'}",
        )


def _handle_errors(app: FastAPI) -> None:
    def answer(request: Request, problem: Problem) -> Response:
        caller_of(request.scope).reason = problem.what
        return problem.response()

    @app.exception_handler(Problem)
    async def _(request: Request, problem: Problem) -> Response:
        return answer(request, problem)

    @app.exception_handler(SparkExtError)
    async def _(request: Request, problem: SparkExtError) -> Response:
        found = Problem.of(problem)
        if found.status == 503:
            log.warning("%s", problem)
        return answer(request, found)

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, problem: RequestValidationError) -> Response:
        first = problem.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:])
        return answer(request, Problem(422, "parameter", f"{name}: {first['msg']}", "correct the parameter"))

    @app.exception_handler(HTTPException)
    async def _(request: Request, problem: HTTPException) -> Response:
        reason = {404: "not_found", 405: "method"}.get(problem.status_code, "malformed")
        what = {404: "not found", 405: "method not allowed"}.get(problem.status_code, str(problem.detail))
        found = Problem(problem.status_code, reason, what, "see /openapi.json", headers=problem.headers)
        return answer(request, found)

    @app.exception_handler(Exception)
    async def _(request: Request, problem: Exception) -> Response:
        log.error("a request failed: %s", mask(f"{type(problem).__name__}: {problem}"), exc_info=problem)
        return answer(
            request, Problem(500, "internal", "the request failed in the server", "see the server's log, and report it")
        )


def _only(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: one for status, one in documented(*statuses).items() if status in statuses or status in (405, 422)}


def _description(app: FastAPI) -> dict[str, Any]:
    """The description, OpenAPI 3.1, with the kinds as they are in this process."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title,
            version=app.version,
            routes=app.routes,
            description="Control events of streaming jobs, and what their ledgers know. Errors are RFC 9457 problems.",
        )
        schemas = found["components"]["schemas"]
        body, others = body_schema()
        schemas.update(others)
        schemas["ControlRequest"] = body
        schemas["Problem"] = ProblemBody.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        found["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"bearer": []}]
        found["paths"]["/health"]["get"]["security"] = []
        app.openapi_schema = found
    return app.openapi_schema


_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Metrics, in the format that Accept asks for.",
        "content": {"text/plain": {}, "application/openmetrics-text": {}},
    }
}


def metrics_routes(metrics: Callable[[], JobMetrics | None]) -> APIRouter:
    """The route of the metrics of a job."""
    router = APIRouter(tags=["server"])

    @router.get("/metrics", response_class=Response, responses=_ANSWER | documented(), summary="Metrics for Prometheus")
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
        from spark_ext.metrics.exporters import Exposition

        text, content_type = Exposition(lambda: [found]).text(accept)
        return Response(text, headers={"Content-Type": content_type})

    return router
