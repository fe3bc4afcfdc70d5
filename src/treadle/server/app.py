"""The application: `create_app(runtime, config)` is a FastAPI app to serve by itself or to mount in another one."""

from __future__ import annotations

import html
from operator import attrgetter
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from treadle import Runtime, __version__
from treadle.server import (
    catalogue,
    conversations_api,
    home,
    login,
    loop_api,
    messages_api,
    openai_api,
    page,
    problems,
    questions,
    queued_messages,
    responses_api,
    session_control,
    session_history,
    session_list,
    sessions,
    settings,
    sockets,
    usage,
    workspace_files,
)
from treadle.server import rpc as chat
from treadle.server.config import ServerConfig
from treadle.server.guard import AsgiApp, Guard
from treadle.server.service import Service, Viewer

DESCRIPTION = "A durable agent runtime: sessions, runs, approvals and events over HTTP."


class ServerApp(FastAPI):
    """The application with its guard, which every request and response passes."""

    def __init__(self, service: Service, **options: Any) -> None:
        super().__init__(**options)
        self.state.service = service

    def build_middleware_stack(self) -> AsgiApp:
        """Put the guard around everything, also around the handlers of errors."""
        service = self.state.service
        app = sessions.PlainMessages(super().build_middleware_stack(), service)
        return Guard(app, service.config, service.tokens)

    def openapi(self) -> dict[str, Any]:
        """Describe all routes and the token that they need."""
        if self.openapi_schema is None:
            schema = super().openapi()
            schemes = {
                "token": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
            components = schema.setdefault("components", {})
            components["securitySchemes"] = schemes
            components.setdefault("schemas", {}).update(problems.build_error_schemas())
            schema["security"] = [{"token": []}, {"key": []}]
            schema["paths"]["/health"]["get"]["security"] = []
            self.openapi_schema = schema
        return self.openapi_schema


def create_app(runtime: Runtime, config: ServerConfig | None = None) -> ServerApp:
    """Build the server for a runtime. It opens and closes the runtime, unless it is mounted in another application.

    Raises `BadInput` without tokens, unless the configuration says `open_to_everyone`.
    """
    config = config or ServerConfig()
    config.check_access()
    service = Service(runtime, config)

    app = ServerApp(
        service,
        title="treadle",
        description=DESCRIPTION,
        version=__version__,
        lifespan=service.run_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        responses=problems.ERROR_RESPONSES,
        generate_unique_id_function=attrgetter("name"),  # so an id does not change when a path does
    )
    for part in (
        session_list,  # before `sessions`, whose ids could have the same names
        sessions,  # early, because most requests are for them
        queued_messages,
        home,
        login,
        questions,
        session_control,
        session_history,
        loop_api,
        chat,
        openai_api,
        responses_api,
        conversations_api,
        messages_api,
        catalogue,
        settings,
        usage,
        workspace_files,
        sockets,
        page,
    ):
        app.include_router(part.router)
    problems.install_error_handlers(app)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi(token: Viewer) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        return app.openapi()

    @app.get("/docs", include_in_schema=False)
    async def docs(token: Viewer) -> HTMLResponse:  # pyright: ignore[reportUnusedFunction]
        return HTMLResponse(render_api_page(app.openapi()))

    return app


def render_api_page(document: dict[str, Any]) -> str:
    """Render the list of all routes for a person, from the OpenAPI document."""
    rows: list[str] = []
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            text = html.escape(about.get("description", ""))
            rows.append(f"<dt><code>{method.upper()} {html.escape(path)}</code></dt><dd>{text}</dd>")
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>treadle: the API</title>'
    link = '<p>For programs: <a href="openapi.json">openapi.json</a></p>'
    return f"{head}<h1>The API</h1>{link}<dl>{''.join(rows)}</dl></html>"
