"""`waypoint diff`."""

import os
from collections.abc import Iterable, Sequence

from waypoint.cli.caller import absolute
from waypoint.cli.output import file_names, print_json, print_lines, wants_colour
from waypoint.cli.pager import paged
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem
from waypoint.model.facts import ChangeFacts
from waypoint.model.rendering import change_lines, patch_lines
from waypoint.model.verbs import Given

_FORMS = ("stat", "patch", "name_only")


def run(given: Given) -> int:
    """Returns 1 with --exit-code if there are differences."""
    name = given.required("name")
    forms = [form for form in _FORMS if given.flag(form)]
    if len(forms) > 1:
        both = " and ".join(f"--{form.replace('_', '-')}" for form in forms)
        raise UsageProblem("compare", name, f"{both} exclude each other", "leave out one of them")
    found = Client(given.text("home")).history.diff(
        name,
        given.text("other"),
        paths=[absolute(path) for path in given.texts("words")],
        lines=forms != ["name_only"],
        patch=forms == ["patch"],
        ignore=given.flag("ignore") and not given.flag("no_ignore"),
    )
    if given.flag("json"):
        print_json(as_json(found))
    else:
        lines = _lines(found, forms[0] if forms else "stat")
        with paged():
            print_lines(lines)
    return int(bool(found) and given.flag("exit_code"))


def as_json(found: Iterable[ChangeFacts]) -> dict[str, object]:
    """The differences, grouped: `files` in full; of `processes` and `environment` the names, by kind of change."""
    files: list[ChangeFacts] = []
    named: dict[str, dict[str, list[str]]] = {
        "process": {"added": [], "removed": []},
        "variable": {"added": [], "removed": [], "changed": []},
    }
    for one in found:
        if one.kind == "file":
            files.append(one)
        else:
            named[one.kind][one.change].append(one.name)
    return {"files": files, "processes": named["process"], "environment": named["variable"]}


def _lines(found: Sequence[ChangeFacts], form: str) -> list[str]:
    if form == "name_only":
        return file_names([one.name for one in found if one.kind == "file"])
    coloured = wants_colour()
    if form == "patch":
        return patch_lines(found, for_terminal=os.isatty(1), coloured=coloured)
    return change_lines(found, coloured=coloured)
