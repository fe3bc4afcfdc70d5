"""Health, readiness and metrics."""

from __future__ import annotations

import asyncio
from importlib import import_module

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel

from treadle.server.readiness import OK
from treadle.server.service import CurrentService, Viewer

router = APIRouter(tags=["server"])


class HealthView(BaseModel):
    status: str = "ok"


class ReadinessView(BaseModel):
    """Each of `checks` is `ok` or says what is wrong. `problems` are those that are wrong."""

    ready: bool
    problems: dict[str, str]
    checks: dict[str, str]


@router.get("/health")
async def check_health() -> HealthView:
    """The process is alive."""
    return HealthView()


@router.get("/v1/health")
async def check_token(token: Viewer) -> HealthView:
    """The process is alive, and the token is valid."""
    return HealthView()


@router.get("/ready", responses={503: {"model": ReadinessView}})
async def check_readiness(service: CurrentService, token: Viewer, response: Response) -> ReadinessView:
    """The store takes facts, its disk has room, and the models can be reached. Otherwise 503 with the reasons."""
    checks = await service.readiness.check()
    if service.is_draining:
        checks["server"] = "is shutting down"
    elif service.runtime.coordinator.is_closed:
        checks["server"] = "was asked to hand its sessions over to the other nodes"
    problems = {name: found for name, found in checks.items() if found != OK}
    if problems:
        response.status_code = 503
    return ReadinessView(ready=not problems, problems=problems, checks=checks)


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(service: CurrentService, token: Viewer) -> PlainTextResponse:
    """Counters in Prometheus' text format."""
    await asyncio.to_thread(import_module, "prometheus_client")  # slow the first time, and streams must not wait for it
    text = service.observer.render_metrics(await service.read_gauges(), service.runtime.log.measure())
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
