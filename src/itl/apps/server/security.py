"""Checks of every request, before anything else handles it: host, origin, token and size; and security headers.

- `Host` must be one of the server's own names. A page of another site whose name is made to point to this machine (DNS
  rebinding) sends its own name.
- `Origin` and `Sec-Fetch-Site` must not name another site (cross-site requests).
- The token in the printed address, in its cookie or in the header `Authorization: Bearer TOKEN` must be right.
"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from itl.apps.server.limits import Limits, parse_number
from itl.apps.server.responses import SafeJSONResponse

SAFE_METHODS = ("GET", "HEAD")
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}
NO_TOKEN = "Open the address that itl serve printed: it contains the token that this page needs."


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    Attributes:
        token: The secret in the address.
        hosts: Accepted values of the header `Host`, in lower case, with the port.
        cookie: Name of the cookie; it contains the port, because browsers share cookies between ports.
    """

    token: str
    hosts: frozenset[str]
    cookie: str

    @classmethod
    def for_address(cls, token: str, host: str, port: int, names: tuple[str, ...] = ()) -> Access:
        """Return the access to a server at an address; `names` are further host names, with or without a port."""
        own = LOOPBACK_NAMES if is_loopback(host) else (*LOOPBACK_NAMES, host)
        hosts = {f"{name}:{port}" for name in own} | {name.lower() for name in names}
        hosts |= {f"{name.lower()}:{port}" for name in names}
        return cls(token, frozenset(hosts), f"itl-token-{port}")

    def is_token(self, given: str) -> bool:
        """Return whether a token is right, in constant time."""
        return hmac.compare_digest(given.encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach an address."""
    return host.strip("[]").lower() in ("127.0.0.1", "localhost", "::1")


class Guard:
    """ASGI middleware that refuses requests and adds security headers."""

    def __init__(self, app: ASGIApp, access: Access, limits: Limits) -> None:
        self.app, self.access, self.limits = app, access, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets
            return
        headers = Headers(scope=scope)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        given = query.get("token", [""])[0]
        is_api = scope["path"].startswith("/api/")
        refusal = self._refusal(scope, headers, given)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    out[name] = value
                out.setdefault("Cache-Control", "no-store")
                if refusal is None and self.access.is_token(given) and not is_api:
                    out.append("Set-Cookie", f"{self.access.cookie}={given}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        if refusal is not None:
            status, text = refusal
            answer: Response = SafeJSONResponse({"error": text}, status) if is_api else PlainTextResponse(text, status)
            await answer(scope, receive, send_with_headers)
            return
        await self.app(scope, self._limited(receive), send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers, given: str) -> tuple[int, str] | None:
        """Return the status and text with which a request is refused; None if it is accepted."""
        if headers.get("host", "").lower() not in self.access.hosts or len(headers.getlist("host")) != 1:
            return 421, "This server does not answer to this host name. Start it with --allow-host NAME to allow it."
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and origin.lower().partition("://")[2] not in self.access.hosts:
            return 403, "Requests from other sites are refused."
        is_page = scope["path"] == "/" and scope["method"] in SAFE_METHODS
        if site not in (None, "same-origin", "none") and not is_page:
            return 403, "Requests from other sites are refused."
        length = parse_number(headers.get("content-length", "0"), 18)
        if length is None or length > self.limits.request_bytes:
            return 413, f"A request has at most {self.limits.request_bytes >> 20} MB. Send the pictures in parts."
        bearer = headers.get("authorization", "").removeprefix("Bearer ").strip()
        if self.access.is_token(bearer or given):
            return None
        if not self.access.is_token(_cookie(headers, self.access.cookie)):
            return 401, NO_TOKEN
        if scope["method"] not in SAFE_METHODS and origin is None and site is None:
            # A browser names the origin of every such request; other programs send the token itself.
            return 403, "A request that changes something must name its origin, or send the token in a header."
        return None

    def _limited(self, receive: Receive) -> Receive:
        """Return a `receive` that ends requests that are too large or too slow."""
        received, deadline = 0, asyncio.get_running_loop().time() + self.limits.body_seconds
        complete = False

        async def limited() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), deadline - asyncio.get_running_loop().time())
            except TimeoutError:
                raise HTTPException(408, "The request took too long. Send it again.") from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self.limits.request_bytes:
                megabytes = self.limits.request_bytes >> 20
                raise HTTPException(413, f"A request has at most {megabytes} MB. Send the pictures in parts.")
            return message

        return limited


def _cookie(headers: Headers, name: str) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""
