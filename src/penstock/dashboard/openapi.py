"""The description of the JSON API, made from the routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.version import __version__

from .pages import Action, Download, Page, Routes

__all__ = ["describe"]


def describe(routes: Routes, server: str) -> dict[str, Any]:
    """An OpenAPI document."""
    schemas, components = _schemas([page.returns for page in routes.pages])
    paths: dict[str, dict[str, Any]] = {}
    for page, schema in zip(routes.pages, schemas, strict=True):
        paths.setdefault(_path(page.segments), {})["get"] = _reading(page, schema)
    for action in routes.actions:
        paths.setdefault(_path(action.segments), {})["post"] = _acting(action)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__},
        "servers": [{"url": server}],
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": components},
    }


def _reading(page: Page, schema: dict[str, Any] | None) -> dict[str, Any]:
    parameters = _names(page.segments) + [
        {"name": name, "in": "query", "description": about, "schema": {"type": "string"}}
        for name, about in page.query.items()
    ]
    kind = "application/octet-stream" if schema is None else "application/json"
    content = {kind: {"schema": schema or {"type": "string", "format": "binary"}}}
    return {
        "summary": page.about,
        "operationId": page.run.__name__,
        "parameters": parameters,
        "responses": {"200": {"description": "The same data as on the page.", "content": content}},
    }


def _acting(action: Action) -> dict[str, Any]:
    fields = {name: {"type": "string", "description": about} for name, about in action.fields.items()}
    return {
        "summary": action.about,
        "description": f"Needs the permission to {action.needs.name.lower()}.",
        "operationId": action.run.__name__,
        "parameters": _names(action.segments),
        "requestBody": {
            "content": {"application/json": {"schema": {"type": "object", "properties": fields}}}
        },
        "responses": {"200": {"description": "Done, with a sentence that says what."}},
    }


def _names(segments: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"name": each[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for each in segments
        if each.startswith("{")
    ]


def _path(segments: Sequence[str]) -> str:
    return "/" + "/".join(segments)


def _schemas(types: Sequence[Any]) -> tuple[list[dict[str, Any] | None], dict[str, Any]]:
    known = [each for each in types if each not in (Download, None)]
    found, components = msgspec.json.schema_components(known, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(map(id, known), found, strict=True))
    return [by_type.get(id(each)) for each in types], components
