"""`itl serve`: a page in the browser for teaching and trying models, and a prediction service."""

from itl.apps.server.app import ServerOptions, create_app

__all__ = ["ServerOptions", "create_app"]
