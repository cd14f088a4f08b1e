"""Clients of the server's application, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from itl.apps.server import ServerOptions, create_app
from itl.apps.server.limits import Limits

TOKEN = "test-token-0123456789"
BASE = "http://127.0.0.1:8484"
LIMITS = Limits(request_bytes=1 << 20, files=20, file_bytes=200_000, zip_bytes=600_000, pixels=250_000, pictures=30)


def client_for(path: Path, token: str | None = TOKEN, **options: Any) -> TestClient:
    """A client of a server for `path`, which sends the token in a header."""
    app = create_app(ServerOptions(path=path, token=TOKEN, device="cpu", limits=LIMITS, **options))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return TestClient(app, base_url=BASE, headers=headers, raise_server_exceptions=False)
