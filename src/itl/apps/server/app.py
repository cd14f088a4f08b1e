"""The Starlette application: routes of the page and of the prediction service."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from itl.apps.server import page_api, service_api
from itl.apps.server.lessons import LessonRunner
from itl.apps.server.limits import Limits
from itl.apps.server.offered_models import Sessions
from itl.apps.server.responses import SafeJSONResponse
from itl.apps.server.security import Access, Guard
from itl.checkpoint import store
from itl.errors import UserError

STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True)
class ServerOptions:
    """What a server offers, and to whom.

    Attributes:
        path: A model folder, a path for a new model, or a folder of models.
        several: Whether `path` is a folder of models; None to find out.
        host: Address to listen at.
        port: Port.
        token: The secret in the address.
        allowed_hosts: Further host names that the server answers to.
        read_only: Offer predictions only.
        device: `auto`, `cpu` or `cuda`.
        new_model: Arguments of `TeachingOptions` for new models.
        limits: Limits on uploads.
    """

    path: Path
    several: bool | None = None
    host: str = "127.0.0.1"
    port: int = 8484
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    allowed_hosts: tuple[str, ...] = ()
    read_only: bool = False
    device: str = "auto"
    new_model: dict[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?token={self.token}"


def create_app(options: ServerOptions) -> Starlette:
    """Return the application.

    Raises:
        UserError: If `options.path` cannot be served.
    """
    sessions = Sessions(options.path, options.device, options.limits, options.several)
    runner = LessonRunner(options.device, options.new_model)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        held = None if options.read_only else sessions.lock()
        try:
            yield
        finally:
            runner.close()
            sessions.close()
            if held is not None:
                held.release()

    routes = [*service_api.routes(), *([] if options.read_only else page_api.routes())]
    app = Starlette(
        routes=[
            Route("/", _page),
            *routes,
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(
                Guard,
                access=Access.for_address(options.token, options.host, options.port, options.allowed_hosts),
                limits=options.limits,
            )
        ],
        exception_handlers={
            UserError: _user_error,
            HTTPException: _http_error,
            ClientDisconnect: _disconnected,
            OSError: _system_error,
            Exception: _internal_error,
        },
        lifespan=lifespan,
    )
    app.state.options, app.state.sessions, app.state.runner = options, sessions, runner
    return app


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")


def _user_error(request: Request, error: Exception) -> Response:
    return SafeJSONResponse({"error": str(error)}, 400)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return SafeJSONResponse({"error": str(error.detail)}, error.status_code)


def _disconnected(request: Request, error: Exception) -> Response:
    """An answer that nobody receives: the page was closed, or the connection lost, during an upload."""
    return Response(status_code=400)


def _system_error(request: Request, error: Exception) -> Response:
    if not store.is_disk_full(error):
        raise error
    return SafeJSONResponse({"error": "There is no space left on the disk. Free some space, then try again."}, 507)


def _internal_error(request: Request, error: Exception) -> Response:
    return SafeJSONResponse({"error": f"Internal error ({type(error).__name__}); the terminal shows details."}, 500)
