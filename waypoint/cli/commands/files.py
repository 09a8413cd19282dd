"""`waypoint cp`, `waypoint cat`, `waypoint ls`, `waypoint mount` and `waypoint umount`."""

import os
import signal
import sys
from collections.abc import Iterable
from typing import NamedTuple

from waypoint.cli.caller import absolute
from waypoint.cli.output import file_names, print_json, print_lines, write_all
from waypoint.cli.terminal import EXIT_SIGNAL
from waypoint.client.files import Files
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem
from waypoint.model.names import is_name
from waypoint.model.rendering import files_table
from waypoint.model.verbs import Given


class _Place(NamedTuple):
    """`name`: of a branch or capture; None: `path` is on this machine."""

    name: str | None
    path: str


def cp(given: Given) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):  # the part of a copy is removed first
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda received, _: sys.exit(EXIT_SIGNAL + received))
    client = Client(given.text("home"))
    source, dest = _place(given.required("source")), _place(given.required("dest"))
    if (source.name is None) == (dest.name is None):
        both = f"{given.required('source')} and {given.required('dest')}"
        said = "one of them must be NAME:PATH, and the other one a path on this machine, or -"
        raise UsageProblem("copy", both, said, "a path on this machine with a colon: ./PATH")
    if source.name is not None:
        files = client.files(source.name)
        if dest.path == "-":
            _print(files.iter_archive(source.path))
        else:
            files.download(source.path, dest.path)
    elif dest.name is not None:
        files = client.files(dest.name)
        if source.path == "-":
            files.upload_archive(0, dest.path)
        else:
            files.upload(source.path, dest.path)
    return 0


def cat(given: Given) -> int:
    files, path = _named(given, "read")
    _print(files.iter_content(path))
    return 0


def list_files(given: Given) -> int:
    files, path = _named(given, "list")
    found = files.list(path)
    if given.flag("json"):
        print_json(found)
    elif given.flag("long"):
        print_lines(files_table(found))
    else:
        print_lines(file_names([one.name for one in found]))
    return 0


def mount(given: Given) -> int:
    Client(given.text("home")).files(given.required("name")).mount(absolute(given.required("dir")))
    return 0


def umount(given: Given) -> int:
    Client(given.text("home")).umount(absolute(given.required("dir")))
    return 0


def _named(given: Given, tried: str) -> tuple[Files, str]:
    place = _place(given.required("file"))
    if place.name is None:
        raise UsageProblem(tried, place.path, "it is not NAME:PATH", "name a branch or capture: NAME:/PATH")
    return Client(given.text("home")).files(place.name), place.path


def _place(text: str) -> _Place:
    """Parse NAME:PATH, with an absolute PATH ("NAME:" is its root), or a path on this machine."""
    name, colon, path = text.partition(":")
    if not colon or not is_name(name):
        return _Place(None, text)
    if path and not path.startswith("/"):
        raise UsageProblem("use", text, f"the path {path} is not absolute", f"write {name}:/{path}")
    return _Place(name, os.path.normpath(path or "/"))


def _print(pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        write_all(1, memoryview(piece))
