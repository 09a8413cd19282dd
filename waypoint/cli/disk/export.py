"""`waypoint export`."""

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Iterator

from waypoint.cli import progress
from waypoint.cli.caller import ask_passphrase
from waypoint.cli.output import note, print_json, tell, write_all
from waypoint.cli.tables import size
from waypoint.client.sdk import Client
from waypoint.model.details.image_facts import ExportedFacts
from waypoint.model.errors import Failed, StateConflict, UsageProblem, WaypointError
from waypoint.model.verbs import Given

_MOST_KEY = 1 << 16


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    path, force = given.required("file"), given.flag("force")
    if path != "-" and os.path.isfile(path) and not force:
        raise _is_there(path)
    key, passphrase = read_text(given, "sign"), read_passphrase(given, is_new=True)
    if path == "-" and given.flag("json"):
        raise UsageProblem("use", "--json", "stdout has the export", "name a file for the export")
    if path == "-" and os.isatty(1):
        said = "stdout is a terminal, and an export is no text"
        raise UsageProblem("export to", "-", said, "name a file for the export")
    images = Client(given.text("home")).images
    with _opened(path, force=force) as fd, progress.shown("export") as bar:

        def write(piece: memoryview) -> None:
            _write(fd, path, piece)
            bar.add(len(piece))

        done = images.export(
            given.required("name"),
            write,
            alone=given.flag("alone"),
            key=key,
            passphrase=passphrase,
            told=functools.partial(setattr, bar, "total"),
        )
    if given.flag("json"):
        print_json(done)
    else:
        note(_told(done))
    tell("left out", done.left_out)
    return 0


def read_text(given: Given, option: str) -> str:
    """The content of the file that the option names; "" if it was not given. Raises UsageProblem."""
    path = given.text(option)
    if path is None:
        return ""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_KEY).decode()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror or str(error) if isinstance(error, OSError) else "it is no text"
        raise UsageProblem("read", path, said, "name a file that you may read") from error


def read_passphrase(given: Given, *, is_new: bool) -> str:
    """The first line of the file with the passphrase, or what the user types, a new one twice; "" if none was named.
    Raises UsageProblem.
    """
    path = given.text("passphrase_file")
    if given.flag("passphrase"):
        if path is not None:
            said = "it and --passphrase-file exclude each other"
            raise UsageProblem("use", "--passphrase", said, "leave one out")
        return ask_passphrase(is_new=is_new)
    found = read_text(given, "passphrase_file").partition("\n")[0]
    if path is not None and not found:
        raise UsageProblem("use", path, "its first line, which is the passphrase, is empty", "name a file that has one")
    return found


def _told(done: ExportedFacts) -> str:
    more = f" with {done.images - 1} that it goes on from" if done.images > 1 else ""
    how = ", ".join(said for said, is_so in (("encrypted", done.encrypted), ("signed", done.signed)) if is_so)
    return f"image {done.image[:12]}{more}: {size(done.size_bytes)}, {how or 'neither encrypted nor signed'}"


@contextlib.contextmanager
def _opened(path: str, *, force: bool) -> Iterator[int]:
    """What `path` stands for, to write to. A file has its name when all of it is on disk. Raises Failed, UsageProblem,
    StateConflict if there is a file that is not to be replaced (`force`).
    """
    if path == "-":
        yield 1
        return
    try:
        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):  # a FIFO, a device
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                yield fd
            finally:
                os.close(fd)
            return
        folder, name = os.path.split(os.path.realpath(path))
        inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _new_file(inside, name, force=force) as fd:
                yield fd
            os.fsync(inside)
        finally:
            os.close(inside)
    except FileExistsError as error:  # since it was looked for
        raise _is_there(path) from error
    except OSError as error:
        raise _failed(path, error) from error


def _is_there(path: str) -> StateConflict:
    return StateConflict(
        "write the export to", path, "it is there already", "name another file, or replace it: --force"
    )


@contextlib.contextmanager
def _new_file(folder: int, name: str, *, force: bool) -> Iterator[int]:
    """A file that is called `name` in the open folder when the `with` block has ended, and all of it is on disk. With
    `force` it takes the place of one of that name; else FileExistsError is raised if there is one by then. Nothing of
    it is left if this process is killed before, where the file system has files without names (O_TMPFILE).
    """
    aside, is_named = f".{name[:200]}.{os.urandom(4).hex()}", False
    try:
        fd = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError:
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd, is_named = os.open(aside, new, 0o600, dir_fd=folder), True
    try:
        try:
            yield fd
            os.fsync(fd)
            if not is_named:
                os.link(f"/dev/fd/{fd}", aside, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(fd)
        if force:
            os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            _name_anew(folder, aside, name)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=folder)
        raise


def _name_anew(folder: int, aside: str, name: str) -> None:
    """Raises OSError: FileExistsError."""
    try:
        os.link(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # A file system without links (vfat): what comes there at this very moment is replaced.
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder))
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        os.unlink(aside, dir_fd=folder)


def _write(fd: int, path: str, piece: memoryview) -> None:
    try:
        write_all(fd, piece)
    except OSError as error:
        if path == "-" and isinstance(error, BrokenPipeError):  # whoever reads has what it wants
            raise
        raise _failed(path, error) from error


def _failed(path: str, error: OSError) -> WaypointError:
    where = "stdout" if path == "-" else path
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | PermissionError):
        next_step = "name a file in a folder that is there, and that you may write to"
        return UsageProblem("write the export to", where, error.strerror or str(error), next_step)
    return Failed("write the export to", where, error.strerror or str(error), "name another file, with room for it")
