"""The OpenAPI 3.1 description of the control interface, made from the table of routes and their records."""

import functools
from collections.abc import Sequence
from typing import Any

import msgspec

import waypoint
from waypoint.daemon.answers import ErrorAnswer
from waypoint.daemon.routes import BRANCH, NAME, PLACEHOLDERS, Route

_REF = "#/components/schemas/{name}"
_JSON = "application/json"


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole description, ready for JSON."""
    records = {kind for route in routes for kind in (route.takes, route.gives) if kind is not dict}
    ordered = sorted(records, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components([*ordered, ErrorAnswer], ref_template=_REF)
    by_type = dict(zip(ordered, schemas, strict=False))
    by_type[dict] = {"type": "object"}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Waypoint",
            "version": waypoint.__version__,
            "description": "The control interface of a Waypoint daemon, over its Unix socket.",
        },
        "servers": [{"url": "http://waypoint", "description": "any host name; the connection is the Unix socket"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, by_type: dict[type, dict[str, Any]], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "parameters": _parameters(route, components),
        "responses": {**_answers(route, by_type[route.gives]), "default": _error()},
    }
    if route.method == "POST":
        required = bool(components[route.takes.__name__].get("required"))
        operation["requestBody"] = {"required": required, "content": {_JSON: {"schema": by_type[route.takes]}}}
    return operation


def _operation_id(route: Route) -> str:
    words = [word for word in route.path.split("/")[2:] if word not in PLACEHOLDERS]
    one = "one" if route.path.endswith(PLACEHOLDERS) else ""
    return "-".join(word for word in (route.method.lower(), *words, one) if word).replace(".", "-")


def _parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    for place, what in ((BRANCH, "name of a branch"), (NAME, "a name, or the beginning of a capture's id")):
        if place in route.path:
            about = f"{what}, percent-encoded: a/b is a%2Fb"
            name = place.strip("{}")
            schema = {"type": "string"}
            parameters.append({"name": name, "in": "path", "required": True, "description": about, "schema": schema})
    if route.method == "GET":
        for name, schema in components.get(route.takes.__name__, {}).get("properties", {}).items():
            parameters.append({"name": name, "in": "query", "required": False, "schema": schema})
    return parameters


def _answers(route: Route, schema: dict[str, Any]) -> dict[str, Any]:
    if route.streams:
        about = "A stream of frames from here on; asked for by 'Connection: Upgrade' and 'Upgrade: waypoint-stream'"
        return {"101": {"description": about}}
    content = {_JSON: {"schema": schema}}
    answers = {"200": {"description": "Done", "content": content}}
    if route.created:
        answers["201"] = {"description": "Made", "content": content}
    return answers


@functools.cache
def _error() -> dict[str, Any]:
    about = "Refused or failed: what was tried, on what, the reason, the next step"
    return {"description": about, "content": {_JSON: {"schema": {"$ref": _REF.format(name=ErrorAnswer.__name__)}}}}
