"""`waypoint diff`."""

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from waypoint.cli.output import note, print_json, print_lines
from waypoint.cli.pager import paged
from waypoint.cli.tables import size
from waypoint.client.address import find_home
from waypoint.client.comparing.diffing import ChangeCalls, diff_request, iter_diff
from waypoint.client.results import DiffResult
from waypoint.model.errors import UsageProblem, cleaned
from waypoint.model.paths import quoted_path
from waypoint.model.verbs import Given

_LETTERS = {"added": "A", "changed": "M", "removed": "D", "retyped": "T", "metadata": "m"}
_COLOURS = {"A": 32, "+": 32, "D": 31, "-": 31, "M": 33, "T": 33, "m": 33, "R": 36, "@": 36}
_WIDEST = 60


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError, OSError."""
    home, name = given.text("home"), given.required("name")
    if given.flag("stat") and given.flag("patch"):
        raise UsageProblem("compare", name, "--stat and --patch exclude each other", "leave out one of the two")
    only = [os.path.abspath(path) for path in given.texts("words")]
    other, machine, patch = given.text("other"), given.flag("machine"), given.flag("patch")
    if given.flag("json"):
        found = ChangeCalls(find_home(home)).diff(name, other, machine=machine, only=only, patch=patch)
        parts = {part: getattr(found, part) for part in ("one", "other", "base", "files", "processes", "environment")}
        print_json({**parts, "different": found.is_different})
        is_different = found.is_different
    else:
        request = diff_request(name, other, machine=machine, only=only, patch=patch)
        lines = iter_diff(find_home(home), request)
        is_different = _show(lines, given)
    return 1 if is_different and given.flag("exit_code") else 0


def _show(lines: Iterator[dict[str, Any]], given: Given) -> bool:
    """Print what differs as it comes. Returns whether anything does."""
    found, total = DiffResult(files=[]), _Total()
    first = next(lines, {})  # what goes wrong at the beginning is told without a pager
    _tell_base(first)
    with paged() as is_terminal:
        out = _DiffOutput(is_terminal)
        for line in itertools.chain([first], lines):
            changes = line.pop("changes", [])
            found.take(line)
            total.add(changes)
            out.put([one for change in changes for one in _told(change, given)])
        if given.flag("stat") and total.files:
            out.put([total.words()])
        out.put(_sections(found, is_first=not total.files))
    return total.files > 0 or found.is_different


def _tell_base(begin: Mapping[str, Any]) -> None:
    """Where the paths are, if a session is compared with what is under it, and that is not the machine's root."""
    base = begin.get("base", "/")
    if base != "/" and begin["one"]["name"] == "base":
        note(f"onto {quoted_path(base)}")


class _DiffOutput:
    """Prints lines: on a terminal in colour, without what it would act on."""

    def __init__(self, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._is_coloured = is_terminal and not os.environ.get("NO_COLOR")

    def put(self, lines: Sequence[str]) -> None:
        if lines:
            print_lines([self._shown(line) for line in lines] if self._is_terminal else list(lines))

    def _shown(self, line: str) -> str:
        line = cleaned(line, keep="\t")
        code = _COLOURS.get(line[:1])
        return f"\x1b[{code}m{line}\x1b[0m" if code and self._is_coloured else line


class _Total:
    """What was told in all. `files`: how many."""

    def __init__(self) -> None:
        self.files = 0
        self._by_letter = Counter[str]()
        self._more_bytes = 0

    def add(self, changes: Sequence[Mapping[str, Any]]) -> None:
        self.files += len(changes)
        for change in changes:
            self._by_letter[change["change"]] += 1
            self._more_bytes += (change["new_size"] or 0) - (change["old_size"] or 0)

    def words(self) -> str:
        kinds = ", ".join(f"{self._by_letter[kind]} {kind}" for kind in _LETTERS if self._by_letter[kind])
        grown = f"{size(abs(self._more_bytes))} {'less' if self._more_bytes < 0 else 'more'}"
        return f"{self.files} {'file' if self.files == 1 else 'files'}: {kinds}; {grown}"


def _told(change: Mapping[str, Any], given: Given) -> list[str]:
    """The lines about one file."""
    path = _shown_path(change["path"], change["type"])
    if given.flag("stat"):
        return [f"{_letter(change)}  {path:<{_WIDEST}} {_sizes(change)}".rstrip()]
    if change["source"]:
        path = f"{_shown_path(change['source'], 'folder')} -> {path}"
    head = f"{_letter(change)}  {path}"
    if "patch" not in change:
        return [head]
    if change["patch"] is None:
        return [f"{head} ({change['no_patch']})"]
    return [head, *change["patch"].split("\n")[:-1]]


def _letter(change: Mapping[str, Any]) -> str:
    return "R" if change["source"] else _LETTERS[change["change"]]


def _shown_path(path: str, kind: str) -> str:
    return quoted_path(f"{path.rstrip('/')}/" if kind == "folder" else path)


def _sizes(change: Mapping[str, Any]) -> str:
    old, new = change["old_size"], change["new_size"]
    if old is None and new is None:
        return ""
    return size(new) if old is None else f"{size(old)} -> {size(new) if new is not None else 'gone'}"


def _sections(found: DiffResult, *, is_first: bool) -> list[str]:
    """What differs beside the files. `is_first`: nothing was told before."""
    lines: list[str] = []
    parts: list[tuple[str, Mapping[str, Any]]] = [
        ("programs", found.processes or {}),
        ("environment", found.environment or {}),
    ]
    for heading, part in parts:
        told = [
            f"{mark} {cleaned(name)}"
            for kind, mark in (("added", "+"), ("removed", "-"), ("changed", "~"))
            for name in part.get(kind, [])
        ]
        if told:
            lines += [*([] if is_first and not lines else [""]), f"{heading}:", *told]
    return lines
