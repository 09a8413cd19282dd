"""Tools as plain functions: their schemas, their arguments and their results follow from the functions' annotations."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_type_hints

import msgspec

from waypoint.model.errors import UsageProblem
from waypoint.model.names import parse_name

Effect = Literal["reads", "adds", "changes", "destroys"]
"""What a tool does to the state that existed before: nothing, adds to it, changes it in a way that can be undone or
that can be repeated without a further effect, or destroys a part of it.
"""
Schema = dict[str, Any]
_MOST_SHOWN = 300
TEXT_BYTES, CONTENT_BYTES = 1 << 20, 64 << 20
CONTENT = frozenset({"content", "stdin"})
"""Arguments that are content of files: they may be long, and have any character."""


class Tool(NamedTuple):
    """One tool. `act` gets the call and the arguments as keywords."""

    name: str
    title: str
    description: str
    effect: Effect
    idempotent: bool
    open_world: bool
    arguments: type[msgspec.Struct]
    act: Callable[..., object]
    input_schema: Schema
    output_schema: Schema

    def bind(self, given: object) -> dict[str, object]:
        """The arguments of a call, checked. Raises UsageProblem."""
        try:
            values = msgspec.convert(given, self.arguments, strict=False)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            said = str(error)[:_MOST_SHOWN]
            known = ", ".join(self.arguments.__struct_fields__)
            raise UsageProblem("call", f"the tool {self.name}", said, f"its arguments: {known}") from error
        found = {name: getattr(values, name) for name in self.arguments.__struct_fields__}
        _check_text(self.name, found)
        for name in filter(None, (found.get(key) for key in ("branch", "name"))):
            parse_name(str(name))
        return found

    def describe(self) -> Schema:
        """The tool as `tools/list` shows it."""
        hints = {
            "title": self.title,
            "readOnlyHint": self.effect == "reads",
            "destructiveHint": self.effect == "destroys",
            "idempotentHint": self.effect == "reads" or self.idempotent,
            "openWorldHint": self.open_world,
        }
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "annotations": hints,
        }


TOOLS: dict[str, Tool] = {}


def tool(
    name: str, title: str, effect: Effect, *, idempotent: bool = False, open_world: bool = False
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Register a function as a tool. Its first parameter is the Call, its docstring the description, the annotations of
    the other parameters the input schema, and its result, a record, the output schema. `open_world`: the tool may reach
    other machines.
    """

    def register(act: Callable[..., object]) -> Callable[..., object]:
        hints = get_type_hints(act, include_extras=True)
        result = hints.pop("return")
        fields = [_field(parameter, hints) for parameter in list(inspect.signature(act).parameters.values())[1:]]
        arguments = msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
        description = inspect.cleandoc(act.__doc__ or "")
        TOOLS[name] = Tool(
            name,
            title,
            description,
            effect,
            idempotent,
            open_world,
            arguments,
            act,
            _schema(arguments, described=True),
            _schema(result, described=False),
        )
        return act

    return register


def _field(parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:  # noqa: ANN401  # as defstruct takes it
    kind = hints[parameter.name]
    return (
        (parameter.name, kind)
        if parameter.default is parameter.empty
        else (parameter.name, kind, msgspec.field(default=parameter.default))
    )


def plain(value: object) -> Any:  # noqa: ANN401  # JSON
    """The result of a tool for JSON. Fields of records that have their defaults are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((one, getattr(value, one.name)) for one in dataclasses.fields(value))
        return {one.name: plain(item) for one, item in pairs if item != _default(one)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _default(one: "dataclasses.Field[Any]") -> object:
    """The default of a field; the MISSING that equals no value, if there is none."""
    return one.default if one.default_factory is dataclasses.MISSING else one.default_factory()


def _schema(kind: object, *, described: bool) -> Schema:
    """The JSON schema of a record, an object at its root. Without `described`, it has no texts for people."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs", {})
    root = definitions.pop(schema["$ref"].rpartition("/")[2])
    whole = {**root, **({"$defs": definitions} if definitions else {})}
    whole.pop("title", None)
    if described:
        whole.pop("description", None)
        return {**whole, "properties": {name: _plain(one) for name, one in whole["properties"].items()}}
    kept = _without_texts(whole)
    assert isinstance(kept, dict)
    return kept


def _plain(schema: Schema) -> Schema:
    """The schema of a parameter. One that may be left out is not shown as one that may be null: models send null then,
    and some clients do not understand `anyOf`.
    """
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 and schema.get("default", 0) is None else schema


def _without_texts(schema: Any, *, names: bool = False) -> Any:  # noqa: ANN401  # JSON
    """`schema` without titles and descriptions. `names`: its keys are names of properties or definitions."""
    if isinstance(schema, dict):
        return {
            key: _without_texts(item, names=not names and key in {"properties", "$defs"})
            for key, item in schema.items()
            if names or key not in {"title", "description", "default"}
        }
    return [_without_texts(item) for item in schema] if isinstance(schema, list) else schema


def _check_text(name: str, values: dict[str, object]) -> None:
    """Raise UsageProblem for text that is too long, or that no program could get: with NUL, or not in UTF-8."""
    for key, value in values.items():
        items = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else [value]
        said, step = "", ""
        for text in (item for item in items if isinstance(item, str)):
            most = CONTENT_BYTES if key in CONTENT else TEXT_BYTES
            if len(text) > most:
                said, step = f"it has more than {most} characters", "write it into a file with `write_file`, in parts"
            elif "\0" in text and key not in CONTENT:
                said, step = "it has a NUL character", "leave out this character"
            elif not _is_utf8(text):
                said, step = "it is not UTF-8", "write it in UTF-8"
        if said:
            raise UsageProblem("call", f"the tool {name} with this `{key}`", said, step)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
