"""The read-only prediction service: facts about models, and predictions."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from itl.apps.model import Model
from itl.apps.model.calibration import Calibration
from itl.apps.server.offered_models import Session
from itl.apps.server.openapi import openapi_document
from itl.apps.server.responses import SafeJSONResponse
from itl.apps.server.uploads import UploadedFile, read_uploads
from itl.errors import UserError

SHOWN_KEYS = ("what", "date", "name", "classes", "accuracy", "old", "new", "size", "before", "images", "seconds")


def routes() -> list[Route]:
    """Return the routes that `--read-only` offers too."""
    return [
        Route("/api/openapi.json", openapi),
        Route("/api/models", models),
        Route("/api/model", model_facts),
        Route("/api/predict", predict, methods=["POST"]),
    ]


def session_of(request: Request) -> Session:
    """Return the model that a request names, or the first one."""
    session: Session = request.app.state.sessions.get(request.query_params.get("model"))
    return session


async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    return SafeJSONResponse(openapi_document(request.app.state.options.limits))


async def models(request: Request) -> Response:
    """Return the names of all models."""
    return SafeJSONResponse({"models": request.app.state.sessions.names()})


async def model_facts(request: Request) -> Response:
    """Return facts about a model."""
    return SafeJSONResponse(await describe_session(session_of(request)))


async def describe_session(session: Session) -> dict[str, Any]:
    """Return facts about a model, which may have learned nothing yet."""
    empty: dict[str, Any] = {"name": session.name, "ready": False, "classes": [], "unknown_rule": Calibration().rule}
    if not session.exists:
        return empty
    try:
        return {**empty, **await session.predictor.run(describe_model)}
    except UserError as error:  # the first lesson is unfinished, or the folder is damaged
        return {**empty, "problem": str(error)}


def describe_model(model: Model) -> dict[str, Any]:
    """Return facts about a model."""
    learner = model.learner
    history = [{key: entry[key] for key in SHOWN_KEYS if key in entry} for entry in model.history]
    return {
        "ready": True,
        "classes": model.classes,
        "unknown_rule": model.calibration.rule,
        "method": learner.method,
        "network": learner.settings.net.name,
        "size": model.image["size"],
        "lessons": sum(entry["what"] == "learn" for entry in model.history),
        "memory": {"images": len(learner.memory), "size": learner.memory.size},
        "history": history,
    }


async def predict(request: Request) -> Response:
    """Classify the images of a request; they are not stored."""
    session = session_of(request)
    files, _ = await read_uploads(request, request.app.state.options.limits)
    if not files:
        raise UserError("there is no image in the request; send a form with files, or the content of an image file")
    predictions, problems = await predict_files(session, files)
    if not predictions:
        return SafeJSONResponse({"error": problems[0]["why"], "problems": problems}, 400)
    return SafeJSONResponse({"model": session.name, "predictions": predictions, "problems": problems})


async def predict_files(
    session: Session, files: list[UploadedFile]
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Return the predictions for readable images, and the problems of the others."""

    async def one(file: UploadedFile) -> dict[str, Any] | UserError:
        try:
            return await session.predictor.predict(file.data)
        except UserError as error:
            return error

    answers = await asyncio.gather(*(one(file) for file in files))
    predictions, problems = [], []
    for file, answer in zip(files, answers, strict=True):
        if isinstance(answer, UserError):
            problems.append({"name": file.name, "why": getattr(answer, "reason", str(answer))})
        else:
            predictions.append({"name": file.name, **answer})
    return predictions, problems
