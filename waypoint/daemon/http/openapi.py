"""The OpenAPI 3.1 description of the daemon's HTTP API, made from the table of routes."""

import functools
import types
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

import waypoint
from waypoint.daemon.http.problems import ErrorAnswer
from waypoint.daemon.http.route import Route, Routes

_REF = "#/components/schemas/{name}"
_JSON = "application/json"
_LINES = "application/x-ndjson"
_PLACEHOLDERS = {
    "branch": "name of a branch",
    "name": "a name, or the beginning of a capture's id",
    "job": "a job's id",
}

Schema = dict[str, Any]


async def description(home: object, routes: Routes) -> dict[str, Any]:
    """Service function: the OpenAPI document of the routes."""
    return _kept_document(routes)


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The OpenAPI document of `routes`, ready for encoding as JSON."""
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Waypoint",
            "version": waypoint.__version__,
            "description": "The API of a Waypoint daemon, over its Unix socket.",
        },
        "servers": [{"url": "http://waypoint", "description": "any host name; the connection is the Unix socket"}],
        "paths": paths,
        "components": {"schemas": schemas.components},
    }


_kept_document = functools.lru_cache(maxsize=1)(document)


class _Schemas:
    """The schemas of the routes' requests and answers. `components`: the named schemas, to which the others refer."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._answers = {route: answer_type(route) for route in routes}
        taken = [route.signature.request for route in self._answers]
        kinds = dict.fromkeys([*self._answers.values(), *taken, ErrorAnswer])
        ordered = sorted((kind for kind in kinds if kind is not None), key=str)
        schemas, self.components = msgspec.json.schema_components(ordered, ref_template=_REF)
        self._by_type: dict[object, Schema] = dict(zip(ordered, schemas, strict=True))

    def of(self, kind: object) -> Schema:
        return self._by_type[kind]

    def taken(self, route: Route) -> Schema:
        """The schema of the route's request; empty if the route takes no fields."""
        request = route.signature.request
        found: Schema = self.components[request.__name__] if request else {}
        return found

    def answer(self, route: Route) -> Schema | None:
        kind = self._answers[route]
        return None if kind is None else self._by_type[kind]


_WRAPPED: dict[tuple[str, str], type] = {}


def answer_type(route: Route) -> object:
    """The type of the JSON in an answer of `route`, or in each line of a download; None if the answer is not JSON."""
    signature = route.signature
    if signature.gives in ("download", "stream"):
        return signature.result
    result = types.GenericAlias(list, signature.result) if signature.gives == "list" else signature.result
    if result is types.NoneType:
        return _record("Done", {})
    if route.wrap:
        return _record(f"{route.wrap.title()}Answer", {route.wrap: result})
    return result


def _record(name: str, fields: dict[str, object]) -> type:
    """A record type with this name and these fields. The same arguments give the same type, because types are used as
    keys here and as named components in the document.
    """
    key = (name, str(fields))
    if key not in _WRAPPED:
        _WRAPPED[key] = msgspec.defstruct(name, list(fields.items()), frozen=True, kw_only=True)
    return _WRAPPED[key]


def _operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "parameters": _parameters(route, schemas),
        "responses": {**_answers(route, schemas), "default": _error(schemas)},
    }
    request = route.signature.request
    if route.signature.uploads:
        operation["requestBody"] = {"required": True, "content": {"*/*": {"schema": {"type": "string"}}}}
    elif route.method == "POST" and request:
        required = bool(schemas.taken(route).get("required"))
        operation["requestBody"] = {"required": required, "content": {_JSON: {"schema": schemas.of(request)}}}
    return operation


def _operation_id(route: Route) -> str:
    words = [part for part in route.path.split("/")[2:] if not part.startswith("{")]
    one = "one" if route.path.endswith("}") else ""
    return "-".join(word for word in (route.method.lower(), *words, one) if word).replace(".", "-")


def _parameters(route: Route, schemas: _Schemas) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    for name in route.placeholders:
        about = f"{_PLACEHOLDERS.get(name, name)}, percent-encoded: a/b is a%2Fb"
        schema = {"type": "string"}
        parameters.append({"name": name, "in": "path", "required": True, "description": about, "schema": schema})
    if route.method == "GET" or route.signature.uploads:
        for name, schema in schemas.taken(route).get("properties", {}).items():
            parameters.append({"name": name, "in": "query", "required": False, "schema": schema})
    return parameters


def _answers(route: Route, schemas: _Schemas) -> dict[str, Any]:
    gives = route.signature.gives
    if gives == "stream":
        about = "A stream of frames follows; request it with 'Connection: Upgrade' and 'Upgrade: waypoint-stream'"
        return {"101": {"description": about}}
    schema = schemas.answer(route)
    if schema is None:
        content: dict[str, Any] = {"*/*": {"schema": {"type": "string"}}}
    else:
        content = {_LINES if gives == "download" else _JSON: {"schema": schema}}
    answers = {"200": {"description": "Done", "content": content}}
    if route.created:
        answers["201"] = {"description": "Made", "content": content}
    return answers


def _error(schemas: _Schemas) -> dict[str, Any]:
    about = "Refused or failed: what was tried, on what, the reason, the next step"
    return {"description": about, "content": {_JSON: {"schema": schemas.of(ErrorAnswer)}}}
