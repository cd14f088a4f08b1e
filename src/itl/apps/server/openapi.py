"""The OpenAPI document of the prediction service."""

from __future__ import annotations

from typing import Any

from itl import __version__
from itl.apps.server.limits import Limits

_UNKNOWN = "Whether the picture belongs to none of the classes; the model's `unknown_rule` says how this is decided."
_CLASS = {
    "type": "object",
    "required": ["class", "confidence"],
    "properties": {
        "class": {"type": "string", "description": "Class name."},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1, "description": "Probability of the class."},
    },
}
_PREDICTION = {
    "type": "object",
    "required": ["name", "class", "confidence", "unknown", "top"],
    "properties": {
        "name": {"type": "string", "description": "File name of the image, as it was sent."},
        **_CLASS["properties"],  # type: ignore[dict-item]
        "unknown": {"type": "boolean", "description": _UNKNOWN},
        "top": {"type": "array", "items": {"$ref": "#/components/schemas/Class"}},
    },
}
_PROBLEM = {
    "type": "object",
    "required": ["name", "why"],
    "properties": {"name": {"type": "string"}, "why": {"type": "string"}},
}
_PREDICTIONS = {
    "type": "object",
    "required": ["model", "predictions", "problems"],
    "properties": {
        "model": {"type": "string"},
        "predictions": {"type": "array", "items": {"$ref": "#/components/schemas/Prediction"}},
        "problems": {"type": "array", "items": {"$ref": "#/components/schemas/Problem"}},
    },
}
_MODEL = {
    "type": "object",
    "required": ["name", "ready", "classes"],
    "properties": {
        "name": {"type": "string"},
        "ready": {"type": "boolean", "description": "Whether a lesson is finished, so that the model can predict."},
        "classes": {"type": "array", "items": {"type": "string"}},
        "method": {"type": "string"},
        "network": {"type": "string"},
        "size": {"type": "integer", "description": "Width and height to which images are reduced."},
        "lessons": {"type": "integer"},
        "memory": {"type": "object"},
        "history": {"type": "array", "items": {"type": "object"}},
        "unknown_rule": {"type": "string"},
    },
}
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_MODEL_PARAMETER = {
    "name": "model",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "Name of the model; by default the first one.",
}


def openapi_document(limits: Limits) -> dict[str, Any]:
    """Return the document."""
    schemas = {"Class": _CLASS, "Prediction": _PREDICTION, "Predictions": _PREDICTIONS, "Problem": _PROBLEM}
    image = {"type": "string", "contentMediaType": "image/*"}
    upload = {"type": "object", "properties": {"image": {"type": "array", "items": image}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "itl prediction service",
            "version": __version__,
            "description": (
                f"At most {limits.files} images of {limits.file_bytes >> 20} MB each and "
                f"{limits.request_bytes >> 20} MB in all can be sent at once. Images are not stored."
            ),
        },
        "security": [{"token": []}],
        "paths": {
            "/api/model": {
                "get": {
                    "summary": "Classes and other facts about a model",
                    "parameters": [_MODEL_PARAMETER],
                    "responses": _responses("Model"),
                }
            },
            "/api/models": {
                "get": {
                    "summary": "Names of all models",
                    "responses": {
                        "200": _json({"type": "object", "properties": {"models": {"type": "array"}}}, "The names"),
                    },
                }
            },
            "/api/predict": {
                "post": {
                    "summary": "Classify one or many images",
                    "description": "Send a form with any number of files, or the content of one image file.",
                    "parameters": [_MODEL_PARAMETER],
                    "requestBody": {
                        "required": True,
                        "content": {"multipart/form-data": {"schema": upload}, "image/*": {"schema": image}},
                    },
                    "responses": _responses("Predictions"),
                }
            },
        },
        "components": {
            "schemas": {**schemas, "Model": _MODEL, "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _json(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _responses(schema: str) -> dict[str, Any]:
    error = {"$ref": "#/components/schemas/Error"}
    reasons = {
        "400": "The request cannot be answered",
        "401": "The token is missing",
        "413": "The request is too large",
    }
    return {
        "200": _json({"$ref": f"#/components/schemas/{schema}"}, "The answer"),
        **{status: _json(error, reason) for status, reason in reasons.items()},
    }
