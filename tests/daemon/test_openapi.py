"""The served OpenAPI description, the table of routes and docs/protocol.md agree."""

import re
from pathlib import Path

import openapi_spec_validator
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012 as DRAFT

from tests.daemon.raw_client import RawClient
from waypoint.daemon.http.routes import ROUTES

PROTOCOL = (Path(__file__).parents[2] / "docs/protocol.md").read_text()
DOCUMENTED = set(re.findall(r"`(GET|POST) (/v1/[^`?]*)(?:\?[^`]*)?`", PROTOCOL))


def test_the_description_is_valid_openapi(client: RawClient) -> None:
    openapi_spec_validator.validate(client.ask("GET", "/v1/openapi.json").json)


def test_openapi_describes_exactly_the_routes(client: RawClient) -> None:
    paths = client.ask("GET", "/v1/openapi.json").json["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}


def test_protocol_md_documents_exactly_the_routes() -> None:
    assert {(route.method, route.path) for route in ROUTES} == DOCUMENTED


def test_operation_ids_are_unique(client: RawClient) -> None:
    paths = client.ask("GET", "/v1/openapi.json").json["paths"]
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(set(names)) == len(ROUTES)


@pytest.mark.parametrize(
    ("method", "path", "target", "body"),
    [
        ("get", "/v1/status", "/v1/status", None),
        ("get", "/v1/sessions", "/v1/sessions?all=1", None),
        ("post", "/v1/sessions", "/v1/sessions", {"branch": "other"}),
        ("get", "/v1/sessions/{branch}", "/v1/sessions/main", None),
        ("post", "/v1/sessions/{branch}/stop", "/v1/sessions/main/stop", {"discard": True}),
        ("post", "/v1/doctor", "/v1/doctor", {}),
        ("get", "/v1/sessions/{branch}", "/v1/sessions/nowhere", None),
        ("post", "/v1/sessions", "/v1/sessions", {"branch": 1}),
    ],
)
def test_answers_match_their_schemas(client: RawClient, method: str, path: str, target: str, body: object) -> None:
    document = client.ask("GET", "/v1/openapi.json").json
    client.ask("POST", "/v1/sessions", {"branch": "main"})
    answer = client.ask(method.upper(), target, body)
    answers = document["paths"][path][method]["responses"]
    described = answers.get(str(answer.status), answers["default"])
    schema = {"$ref": "urn:api" + described["content"]["application/json"]["schema"]["$ref"]}
    registry = Registry().with_resource("urn:api", Resource.from_contents(document, default_specification=DRAFT))
    Draft202012Validator(schema, registry=registry).validate(answer.json)
