"""SDK for the files of captures and sessions."""

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

from waypoint.client import wire
from waypoint.client.command import Command
from waypoint.client.link import ask, reach
from waypoint.client.quoting import as_json_text
from waypoint.client.results import how_ended, parse_list
from waypoint.model.errors import Failed, StateConflict
from waypoint.model.facts import FileFacts
from waypoint.model.names import parse_name

_UNPACK = """a=$1
[ -d "$a" ] || a=$(dirname -- "$a")
[ -d "$a" ] || { echo "$a: there is no such folder" >&2; exit 1; }
t=$(mktemp -d "$a/.waypoint-cp.XXXXXX") || exit
tar -xf - -C "$t" || { s=$?; rm -rf -- "$t"; exit $s; }
printf %s "$t" """
"""Inside the session: extract the archive on stdin beside the place $1, or in the folder $1. Prints the folder."""

_PLACE = """t=$1 n=$2 d=$3
[ ! -d "$d" ] || d=$d/$n
if [ -d "$d" ] && [ -d "$t/$n" ]; then cp -al --remove-destination -- "$t/$n/." "$d"; else mv -T -- "$t/$n" "$d"; fi
s=$?; rm -rf -- "$t"; exit $s"""
"""Inside the session: move the file $2 of the folder $1 into the folder $3, or to $3. Folders are merged."""

_WRITE = """f=$(readlink -f -- "$1") || { echo "$1: there is no such folder" >&2; exit 1; }
if [ -e "$f" ] && ! { [ -f "$f" ] && [ -O "$f" ]; }; then exec cat > "$f"; fi
t=$(mktemp "$(dirname -- "$f")/.waypoint-write.XXXXXX") || exit
if [ -e "$f" ]; then cp --attributes-only --preserve=all -- "$f" "$t"
else chmod $(printf %o $((0666 & ~$(umask)))) "$t"; fi
[ $? = 0 ] && cat > "$t" && mv -T -- "$t" "$f"
s=$?; rm -f -- "$t"; exit $s"""
"""Inside the session: write stdin to the file $1, at once if it is missing or belongs to the user."""


_MOST_SAID = 500


class Files:
    """The files of one capture, or of a branch: its running session, if there is one. Paths are absolute in the
    session.
    """

    def __init__(self, home: str, name: str, user: str | None = None) -> None:
        """Use Client.files or Session.files."""
        self._home = home
        self._name = parse_name(name)
        self._user = user

    def read(self, path: str) -> bytes:
        """The content of a file. Raises UnknownName, NotAllowed."""
        return b"".join(self.iter_content(path))

    def iter_content(self, path: str) -> Iterator[bytes]:
        """Yield the content of a file in pieces."""
        return self._pieces(path, archive=False)

    def iter_archive(self, path: str) -> Iterator[bytes]:
        """Yield a tar archive of a file or folder in pieces. Its only entry at the top is the file or folder."""
        return self._pieces(path, archive=True)

    def mount(self, point: str) -> None:
        """Mount a read-only view of the capture at a folder of this machine. Only root may do this."""
        body = {"name": self._name, "point": as_json_text(os.path.abspath(point))}
        ask(self._home, "POST", "/v1/mounts", body, may_repeat=False)

    def list(self, path: str) -> Sequence[FileFacts]:
        """The files in a folder; of a file that is no folder, the file itself."""
        body = {"name": self._name, "path": as_json_text(path)}
        return parse_list(FileFacts, ask(self._home, "POST", "/v1/files/list", body), "files")

    def download(self, path: str, dest: str) -> str:
        """Copy a file or folder to `dest` on this machine: into it, if it is a folder, else as `dest`, which must not
        exist unless both are files. Returns the path of the copy. Its files belong to this process's user.
        """
        name = os.path.basename(os.path.normpath(path))
        target = os.path.join(dest, name or "root") if os.path.isdir(dest) else dest
        above = os.path.dirname(os.path.abspath(target))
        try:
            folder = tempfile.mkdtemp(prefix=".waypoint-cp.", dir=above)
        except OSError as error:
            raise Failed("write to", above, error.strerror or str(error), "choose another folder") from error
        try:
            self._fetch(path, folder, name)
            copy = os.path.join(folder, *os.listdir(folder)) if name else folder
            if os.path.lexists(target) and (os.path.isdir(target) or os.path.isdir(copy)):
                raise StateConflict("write", target, "it exists", "name a path that does not exist", code="name-taken")
            os.replace(copy, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return target

    def _fetch(self, path: str, folder: str, name: str) -> None:
        """Copy the file or folder at `path` into `folder`, under its `name`. The daemon opens it and passes the
        descriptor, because content that passes through two programs in Python takes five times as long.
        """
        body = {"name": self._name, "path": as_json_text(path), "descriptor": True}
        try:
            with contextlib.closing(
                reach(self._home, lambda socket: wire.Handover(socket, "/v1/files/read", body))
            ) as handed:
                if handed.kind == b"file":
                    _copy(handed.descriptor, os.path.join(folder, name))
                else:
                    _extract(handed.descriptor, folder)
                handed.finish()
        except wire.Cut as cut:
            raise Failed("read", f"{self._name}:{path}", str(cut), "try again", code="connection-lost") from cut

    def write(self, path: str, content: bytes) -> None:
        """Write a file in the running session, with the rights of the session's user."""
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/content", "wb") as file:
                file.write(content)
            with open(f"{folder}/content", "rb") as source:
                self._run(["sh", "-c", _WRITE, "sh", path], source.fileno(), path)

    def upload(self, source: str, path: str) -> None:
        """Copy a file or folder of this machine into the running session: into `path`, if it is a folder, else as
        `path`. A folder is merged with one of its name. After a failure there is no new file. The copies belong to the
        session's user, unless that is root.
        """
        above, name = os.path.split(os.path.abspath(source))
        command = ["tar", "-cf", "-", "-C", above, "--", f"./{name}"]
        with tempfile.TemporaryFile() as said:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said) as packing:
                assert packing.stdout is not None
                new = self._run(["sh", "-c", _UNPACK, "sh", path], packing.stdout.fileno(), path)
            if packing.returncode != 0:
                self._run(["rm", "-rf", "--", new], -1, path)
                raise Failed("read", source, _first_line(said), "name another file, or try again")
        self._run(["sh", "-c", _PLACE, "sh", new, name, path], -1, path)

    def upload_archive(self, archive_fd: int, path: str) -> None:
        """Extract the tar archive that the descriptor reads into the folder `path` of the running session."""
        self._run(["tar", "-xf", "-", "-C", path], archive_fd, path)

    def _run(self, argv: Sequence[str], input_fd: int, path: str) -> str:
        """Run a program in the session to write `path`. Returns its output."""
        request: dict[str, object] = {"argv": [as_json_text(word) for word in argv], "user": self._user}
        request["stdin"] = input_fd >= 0
        output, said = bytearray(), bytearray()
        end = how_ended(Command(self._home, self._name, "run", request).wait(output.extend, said.extend, input_fd))
        if end.exit != 0:
            lines = said.decode(errors="replace").strip().splitlines() or [end.said or f"exit status {end.exit}"]
            raise Failed("write", f"{self._name}:{path}", lines[0], "choose another path")
        return os.fsdecode(bytes(output))

    def _pieces(self, path: str, *, archive: bool) -> Iterator[bytes]:
        body = {"name": self._name, "path": as_json_text(path), "archive": archive}
        on = f"{self._name}:{path}"
        try:
            yield from reach(
                self._home, lambda socket: _begun(wire.request_pieces(socket, "POST", "/v1/files/read", body))
            )
        except wire.Cut as cut:
            raise Failed("read", on, str(cut), "try again", code="connection-lost") from cut


def _begun(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces; the first one is requested at once, so that a refusal is raised here."""
    first = next(pieces, b"")
    return _after(first, pieces)


def _after(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from pieces


def _copy(source: int, path: str) -> None:
    """Make the file at `path` a copy of the one that `source` reads: content, holes, time, and permissions as far as
    the umask allows them.
    """
    facts, place = os.fstat(source), 0
    size = facts.st_size
    copy = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IMODE(facts.st_mode) & 0o777)
    try:
        while place < size:
            try:
                place = os.lseek(source, place, os.SEEK_DATA)
            except OSError:  # ENXIO: a hole up to the end
                break
            end = os.lseek(source, place, os.SEEK_HOLE)
            os.lseek(copy, place, os.SEEK_SET)
            while place < min(end, size):
                sent = os.sendfile(copy, source, place, end - place)
                place += sent
                size = size if sent else place  # the machine has truncated this file of its own meanwhile
        os.truncate(copy, size)
        os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    except OSError as error:
        next_step = "choose another folder, or free space"
        raise Failed("write to", os.path.dirname(os.path.dirname(path)), str(error.strerror), next_step) from error
    finally:
        os.close(copy)


def _extract(archive: int, folder: str) -> None:
    command = ["tar", "-xf", "-", "--no-same-owner", "--no-same-permissions", "-C", folder]
    with tempfile.TemporaryFile() as said:
        done = subprocess.run(command, stdin=archive, stderr=said, check=False)
        if done.returncode != 0:
            raise Failed("write to", os.path.dirname(folder), _first_line(said), "choose another folder, or free space")


def _first_line(said: IO[bytes]) -> str:
    """The first message of tar in a file."""
    said.seek(0)
    lines = said.read(1 << 16).decode(errors="replace").strip().splitlines()
    line = lines[0].removeprefix("tar: ") if lines else "tar has failed"
    return line if len(line) <= _MOST_SAID else f"...{line[-_MOST_SAID:]}"
