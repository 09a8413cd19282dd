"""`waypoint import`."""

import os
import select
import stat

from waypoint.cli import progress
from waypoint.cli.caller import ask_passphrase
from waypoint.cli.disk.export import read_passphrase, read_text
from waypoint.cli.output import print_json, print_lines, tell
from waypoint.cli.tables import short, size
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem
from waypoint.model.verbs import Given

_PIECE = 1 << 18
_ENCRYPTED = b"WPexpo\x01\x01"


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    path = given.required("file")
    signer, passphrase = read_text(given, "require_signature"), read_passphrase(given, is_new=False)
    if given.text("require_signature") is not None and not signer:
        raise UsageProblem("use", str(given.text("require_signature")), "it is empty", "name a file that has one")
    images = Client(given.text("home")).images
    fd = 0 if path == "-" else _opened(path)
    try:
        passphrase = passphrase or _asked(fd)
        with progress.shown("import", _size(fd)) as bar:

            def read() -> bytes:
                piece = _read(fd)
                bar.add(len(piece))
                return piece

            found = images.take(
                read,
                name=given.text("as"),
                signer=signer,
                passphrase=passphrase,
                trust=given.flag("trust"),
            )
    finally:
        if fd:
            os.close(fd)
    if given.flag("json"):
        print_json(found)
    else:
        more = f" with {found.images - 1} that it goes on from" if found.images > 1 else ""
        new = f"{found.new} new" if found.new else "all here already"
        line = f"{found.name}  capture {short(found.capture)}, image {found.image[:12]}{more}: {new}"
        print_lines([f"{line}; the store grew by {size(found.added_bytes)}"])
    tell("not here", found.elsewhere)
    tell("left out", found.left_out)
    return 0


def _asked(fd: int) -> str:
    """The passphrase, if the header of the file says that it is encrypted (docs/format.md), and there is whom to ask;
    else "". Raises UsageProblem.
    """
    if _size(fd) is None or not (os.isatty(0) and os.isatty(2)):
        return ""
    header = os.pread(fd, len(_ENCRYPTED), 0)
    return ask_passphrase(is_new=False) if header == _ENCRYPTED else ""


def _size(fd: int) -> int | None:
    """The size of a file; None for what has none, as a pipe."""
    facts = os.fstat(fd)
    return facts.st_size if stat.S_ISREG(facts.st_mode) else None


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageProblem("import", path, error.strerror or str(error), "name a file that you may read") from error


def _read(fd: int) -> bytes:
    try:
        while True:
            try:
                return os.read(fd, _PIECE)
            except BlockingIOError:
                select.select([fd], [], [])
    except OSError as error:
        raise UsageProblem(
            "import", "the export", error.strerror or str(error), "name a file that you may read"
        ) from error
