"""`itl serve`: teach and try models in the browser, and serve predictions."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from itl.cli import options
from itl.cli.output import warn
from itl.cli.parsing import parse_settings
from itl.errors import UserError

DEFAULT_FOLDER, DEFAULT_PORT = "itl-models", 8484
GRACE_SECONDS = 5  # for open requests when the server ends


@click.command()
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help=f"Port. [default: {DEFAULT_PORT}, or a free one]"
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen at.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Also answer to this host name. Repeatable.")
@click.option(
    "--token", envvar="ITL_SERVE_TOKEN", metavar="TEXT", help="Secret in the address. [default: a new random one]"
)
@click.option("--read-only", is_flag=True, help="Offer predictions only; nothing can be taught or changed.")
@click.option("--open/--no-open", "open_page", default=True, help="Open the page in a browser. [default: --open]")
@click.option(
    "--size", type=int, metavar="N", help="Image size of new models in pixels. [default: chosen from the images]"
)
@options.lesson_epochs_option
@options.settings_option
@options.device_option
def serve(model: str | None, **given: Any) -> None:
    """Teach and try models in the browser.

    MODEL is a model folder, or a folder of models. A model that does not exist is created when it is taught. Without
    MODEL, the models in the folder itl-models are served.

    The page is for you alone: the server listens at 127.0.0.1, and the address contains a secret. Programs can send
    images to /api/predict; /api/openapi.json describes the service.
    """
    try:
        import uvicorn

        from itl.apps.server import ServerOptions, create_app
    except ImportError as error:
        raise UserError(f"itl serve needs more packages ({error.name}): pip install 'itl[serve]'") from None
    from itl.apps.server.security import is_loopback

    settings = parse_settings(given["pairs"], given["epochs"])
    new_model = {key: value for key, value in (("size", given["size"]), ("settings", settings)) if value}
    token = given["token"] or secrets.token_urlsafe(24)
    if len(token) < 16 or not token.isascii() or not token.replace("-", "").replace("_", "").isalnum():
        raise UserError("--token must have at least 16 letters, digits, - or _.")
    listening = _listen(given["host"], given["port"])
    server = ServerOptions(
        path=Path(model or DEFAULT_FOLDER),
        several=None if model else True,
        host=given["host"],
        port=listening.getsockname()[1],
        token=token,
        allowed_hosts=given["hosts"],
        read_only=given["read_only"],
        device=given["device"],
        new_model=new_model,
    )
    app = create_app(server)
    if not server.read_only:
        app.state.sessions.lock().release()  # report a second server before the address is printed
    if not is_loopback(server.host):
        warn("Everyone who can reach this machine and knows the token can use the page. Traffic is not encrypted.")
    click.echo(f"Open {server.url}")
    click.echo("Press Ctrl-C to stop.")
    if given["open_page"]:
        webbrowser.open(server.url)
    if not server.read_only:
        app.state.runner.warm_up()
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # addresses contain the token
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
    click.echo("Stopped.")


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a socket at a port; without a port, at the default one or, if that is in use, at a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [DEFAULT_PORT, 0] if port is None else [port]:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
        except OSError as error:
            listening.close()
            problem = error
        else:
            listening.listen(128)  # a browser that is faster than the server waits
            return listening
    raise UserError(f"Cannot listen at {host}, port {port}: {problem.strerror}. Use another --port or --host.")
