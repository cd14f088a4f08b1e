"""The API of the page, except for prediction: collect pictures, teach, evaluate, correct, and change models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from itl.apps.images import UnreadableImage, clear_cache
from itl.apps.images.picture_list import check_class_name
from itl.apps.model import Model, edit, lock
from itl.apps.server import exports
from itl.apps.server.added_pictures import thumbnail
from itl.apps.server.backbones import backbone_choices, new_model_options
from itl.apps.server.evaluation import Review, memory_slots, review_model
from itl.apps.server.lessons import LessonRunner
from itl.apps.server.limits import parse_number
from itl.apps.server.offered_models import Session
from itl.apps.server.responses import SafeJSONResponse
from itl.apps.server.service_api import describe_session, predict_files, session_of
from itl.apps.server.uploads import UploadedFile, read_uploads
from itl.apps.teaching.held_out_evaluation import current_names, last_entries
from itl.errors import UserError
from itl.strict_json import parse_json

MAX_JSON_BYTES = 1 << 20
THUMBNAIL_SIDE = 160  # pixels
PICTURE_CACHE = "private, max-age=86400, immutable"  # a picture's id is a digest of its content
T = TypeVar("T")


def routes() -> list[Route]:
    """Return the routes that change something or show stored pictures."""
    return [
        Route("/api/state", state),
        Route("/api/models", create_model, methods=["POST"]),
        Route("/api/classes/rename", rename_draft_class, methods=["POST"]),
        Route("/api/classes/remove", remove_draft_class, methods=["POST"]),
        Route("/api/pictures", add_pictures, methods=["POST"]),
        Route("/api/pictures/move", move_pictures, methods=["POST"]),
        Route("/api/pictures/remove", remove_pictures, methods=["POST"]),
        Route("/api/pictures/{picture}", show_picture),
        Route("/api/memory/{slot}", show_memory),
        Route("/api/lesson", start_lesson, methods=["POST"]),
        Route("/api/lesson/cancel", cancel_lesson, methods=["POST"]),
        Route("/api/lesson/continue", continue_lesson, methods=["POST"]),
        Route("/api/lesson/discard", discard_lesson, methods=["POST"]),
        Route("/api/try", try_pictures, methods=["POST"]),
        Route("/api/review", review),
        Route("/api/correct", correct, methods=["POST"]),
        Route("/api/undo", undo, methods=["POST"]),
        Route("/api/rename", rename, methods=["POST"]),
        Route("/api/forget", forget, methods=["POST"]),
        Route("/api/export/{kind}", export),
    ]


async def _json(request: Request, *keys: str) -> dict[str, Any]:
    """Return a JSON body that contains these keys as text."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HTTPException(415, "The body must be JSON (Content-Type: application/json).")
    body = await request.body()
    try:
        if len(body) > MAX_JSON_BYTES:
            raise ValueError("too long")
        values = parse_json(body)
        if not isinstance(values, dict) or not all(isinstance(values.get(key), str) for key in keys):
            raise ValueError("keys are missing")
    except ValueError:
        raise UserError(f"the body must be a JSON object with the texts {', '.join(keys) or '(none)'}") from None
    return values


def _texts(values: dict[str, Any], key: str) -> list[str]:
    texts = values.get(key)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{key} must be a list of texts")
    return texts


def _runner(request: Request) -> LessonRunner:
    runner: LessonRunner = request.app.state.runner
    return runner


async def _edit(request: Request, change: Callable[[Session], T]) -> T:
    """Make a change in a thread while no lesson is being taught."""
    session = session_of(request)
    _runner(request).require_idle()
    result = await asyncio.to_thread(change, session)
    session.review = None
    return result


# ---------------------------------------------------------------------- state and models


async def state(request: Request) -> Response:
    """Return everything that the page shows, except the review."""
    session, runner = session_of(request), _runner(request)
    job = runner.job if runner.job is not None and runner.job["model"] == session.name else None
    unfinished = None if runner.running else session.unfinished()
    model = await describe_session(session)
    draft = [{"name": name, "pictures": pictures} for name, pictures in session.pictures.draft().items()]
    known = set(model["classes"])
    return SafeJSONResponse(
        {
            "models": request.app.state.sessions.names(),
            "several": request.app.state.sessions.several,
            "model": model,
            "draft": [{**one, "known": one["name"] in known} for one in draft],
            "job": job,
            "busy": runner.running,
            "unfinished": unfinished,
            "tried": len(session.pictures.tried()),
            "backbones": [] if session.exists else backbone_choices(request.app.state.options.new_model),
        }
    )


async def create_model(request: Request) -> Response:
    """Create a model."""
    values = await _json(request, "name")
    session = request.app.state.sessions.create(values["name"])
    return SafeJSONResponse({"name": session.name}, 201)


# ---------------------------------------------------------------------- pictures of the next lesson


async def rename_draft_class(request: Request) -> Response:
    """Rename a class of the next lesson."""
    values = await _json(request, "old", "new")
    session_of(request).pictures.rename_class(values["old"], values["new"])
    return SafeJSONResponse({})


async def remove_draft_class(request: Request) -> Response:
    """Remove a class with its pictures from the next lesson."""
    values = await _json(request, "name")
    session_of(request).pictures.remove_class(values["name"])
    return SafeJSONResponse({})


async def add_pictures(request: Request) -> Response:
    """Add pictures to a class of the next lesson, or a zip file whose folders are classes."""
    session = session_of(request)
    files, fields = await read_uploads(request, request.app.state.options.limits)
    given = check_class_name(fields["class"]) if fields.get("class", "").strip() else None
    return SafeJSONResponse(await asyncio.to_thread(_store, session, files, given))


def _store(session: Session, files: list[UploadedFile], given: str | None) -> dict[str, Any]:
    added: dict[str, list[str]] = {}
    problems = []
    for file in files:
        name = given or file.class_name
        try:
            if name is None:
                raise UserError("the file is in no folder, so its class is unknown; drop it onto a class")
            added.setdefault(check_class_name(name), []).append(session.pictures.save(file.data))
        except UserError as error:
            problems.append({"name": file.name, "why": getattr(error, "reason", str(error))})
    for name, pictures in added.items():
        session.pictures.add(pictures, name)
    return {"added": sum(len(set(pictures)) for pictures in added.values()), "problems": problems}


async def move_pictures(request: Request) -> Response:
    """Move pictures into another class of the next lesson."""
    values = await _json(request, "class")
    session_of(request).pictures.add(_texts(values, "pictures"), values["class"])
    return SafeJSONResponse({})


async def remove_pictures(request: Request) -> Response:
    """Remove pictures from the next lesson."""
    session_of(request).pictures.remove(_texts(await _json(request), "pictures"))
    return SafeJSONResponse({})


async def show_picture(request: Request) -> Response:
    """Return a small version of a picture. The stored file itself is never sent to a browser."""
    session, picture = session_of(request), request.path_params["picture"]
    path = session.pictures.path(picture) or session.outside_files.get(picture)
    side = parse_number(request.query_params.get("side", ""), 4) or THUMBNAIL_SIDE
    if path is None:
        raise HTTPException(404, "There is no such picture.")
    try:
        data = await asyncio.to_thread(thumbnail, path, side)
    except (UnreadableImage, OSError):
        raise HTTPException(404, "The picture cannot be read.") from None
    return Response(data, media_type="image/jpeg", headers={"Cache-Control": PICTURE_CACHE})


async def show_memory(request: Request) -> Response:
    """Return a picture of the memory."""
    slot = parse_number(request.path_params["slot"], 9)
    data = None
    if slot is not None:
        data = await session_of(request).predictor.run(lambda model: exports.memory_png(model, slot))
    if data is None:
        raise HTTPException(404, "There is no such picture in the memory.")
    return Response(data, media_type="image/png")


# ---------------------------------------------------------------------- lessons


async def start_lesson(request: Request) -> Response:
    """Teach the pictures of the next lesson."""
    values, session, runner = await _json(request), session_of(request), _runner(request)
    runner.require_idle()
    if session.unfinished() is not None:
        raise UserError("a lesson is unfinished; continue or discard it first")
    known = set((await describe_session(session))["classes"])
    names = {name for name, pictures in session.pictures.draft().items() if pictures}
    if len(known | names) < 2:
        raise UserError("a model needs at least two classes; add pictures of another class")
    options = {} if session.exists else new_model_options(values.get("backbone"), request.app.state.options.new_model)
    lesson = await asyncio.to_thread(session.pictures.start_lesson)
    runner.start(session, lesson, options)
    return SafeJSONResponse({"lesson": lesson}, 202)


async def cancel_lesson(request: Request) -> Response:
    """Cancel the lesson that is being taught."""
    await _json(request)
    _runner(request).cancel()
    return SafeJSONResponse({}, 202)


async def continue_lesson(request: Request) -> Response:
    """Continue an unfinished lesson."""
    values, session = await _json(request), session_of(request)
    lesson = session.unfinished()
    if lesson is None:
        raise UserError("there is no unfinished lesson")
    options = {} if session.exists else new_model_options(values.get("backbone"), request.app.state.options.new_model)
    _runner(request).start(session, lesson, options)
    return SafeJSONResponse({"lesson": lesson}, 202)


async def discard_lesson(request: Request) -> Response:
    """Undo an unfinished lesson; its pictures go back into the next one."""
    await _json(request)

    def change(session: Session) -> None:
        lesson = session.unfinished()
        if lesson is None:
            raise UserError("there is no unfinished lesson")
        session.discard(lesson)

    await _edit(request, change)
    return SafeJSONResponse({})


# ---------------------------------------------------------------------- trying, reviewing, correcting


async def try_pictures(request: Request) -> Response:
    """Classify pictures and keep them, so that they can be corrected."""
    session = session_of(request)
    files, _ = await read_uploads(request, request.app.state.options.limits)
    predictions, problems = [], []
    for file in files:
        found, failed = await predict_files(session, [file])
        problems += failed
        for prediction in found:
            picture = await asyncio.to_thread(session.pictures.save, file.data)
            session.pictures.set_tried([*session.pictures.tried(), picture])
            predictions.append({**prediction, "picture": picture})
    return SafeJSONResponse({"predictions": predictions, "problems": problems})


async def _review(session: Session) -> tuple[Review, dict[str, list[int]]]:
    """Return the review of the present state; it is computed again only if something has changed."""

    def compute(model: Model) -> tuple[Review, dict[str, list[int]]]:
        lists = [session.pictures.read(name).test for name in session.pictures.lessons()]
        key = (model.generation, session.pictures.tried(), lists)
        if session.review is None or session.review[0] != key:
            session.review = (key, (review_model(session, model), memory_slots(model)))
        result: tuple[Review, dict[str, list[int]]] = session.review[1]
        return result

    return await session.predictor.run(compute)


async def review(request: Request) -> Response:
    """Return accuracies, the confusion matrix, the memory and the least certain pictures."""
    result, memory = await _review(session_of(request))
    return SafeJSONResponse(result.to_dict(memory))


async def correct(request: Request) -> Response:
    """Move a held-out or tried picture into a class of the next lesson."""
    values = await _json(request, "picture", "class")
    await _edit(request, lambda session: session.pictures.correct(values["picture"], values["class"]))
    return SafeJSONResponse({})


# ---------------------------------------------------------------------- changes of the model


async def undo(request: Request) -> Response:
    """Undo the last change."""
    await _json(request)
    entries = await _edit(request, lambda session: session.undo())
    return SafeJSONResponse({"undone": [entry["what"] for entry in entries]})


async def rename(request: Request) -> Response:
    """Rename a class, or merge it into another one."""
    values = await _json(request, "old", "new")
    old, new, merge = values["old"], check_class_name(values["new"]), bool(values.get("merge"))

    def change(session: Session) -> None:
        with lock(session.folder):
            edit.rename(Model.open(session.folder, device="cpu"), old, new, merge=merge)
        session.pictures.rename_class(old, new)

    await _edit(request, change)
    return SafeJSONResponse({})


async def forget(request: Request) -> Response:
    """Remove a class and all its pictures for good."""
    values = await _json(request, "class")

    def change(session: Session) -> int:
        with lock(session.folder):
            model = Model.open(session.folder, device="cpu")
            name = edit.resolve_class(model, values["class"])
            earlier = {
                Path(folder).name: {old for old, new in current_names(model, entry).items() if new == name}
                for folder, entry in last_entries(model).items()
            }
            count = edit.forget(model, classes=[name])
        session.pictures.forget_class(name, earlier)
        clear_cache()  # decoded images and their features are also cached outside the folder
        return count

    return SafeJSONResponse({"images": await _edit(request, change)})


async def export(request: Request) -> Response:
    """Return a file: `model.onnx`, `predictions.csv`, `memory.zip` or `pictures.zip`."""
    session, kind = session_of(request), request.path_params["kind"]
    if kind == "predictions.csv":
        result, _ = await _review(session)
        disposition = {"Content-Disposition": 'attachment; filename="predictions.csv"'}
        return Response(result.to_csv(), media_type="text/csv; charset=utf-8", headers=disposition)
    if kind == "pictures.zip":
        path, media_type = await asyncio.to_thread(exports.pictures_zip, session), "application/zip"
    elif kind == "memory.zip":
        path, media_type = await session.predictor.run(exports.memory_zip), "application/zip"
    elif kind == "model.onnx":
        path, media_type = await asyncio.to_thread(exports.onnx_file, session.folder), "application/octet-stream"
    else:
        raise HTTPException(404, "There is no such file.")
    return FileResponse(path, media_type=media_type, filename=kind, background=BackgroundTask(path.unlink))
