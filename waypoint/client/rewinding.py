"""The file in which an agent keeps its conversation: what a point notes about it, and its return to that state.

Agents only append to such a file (Claude Code, Codex). So a point notes its size and a digest of the last bytes before
that; as long as the digest fits, the beginning of the present file is the file of that time.
"""

import contextlib
import os
import tempfile

from waypoint.model.errors import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.facts import ConversationFacts

TAIL_BYTES = 4096
_PIECE = 1 << 20


def describe(path: str) -> "ConversationFacts":
    """What a point notes about the file `path`. Raises OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return {"path": path, "size": size, "tail": _tail(file.fileno(), size), "inside": False}


def has_then(fd: int, then: "ConversationFacts") -> bool:
    """Whether the open file begins with the content that `then` notes."""
    return os.fstat(fd).st_size >= then["size"] and _tail(fd, then["size"]) == then["tail"]


def put_back(then: "ConversationFacts", kept: str | None) -> str | None:
    """Let the file have the content that `then` notes again: from the present file or, if that does not begin with it,
    from the file `kept`. Returns the path of the replaced file, which is kept; None if nothing is to be done. Raises
    Failed if no file has that content, OSError.
    """
    path = then["path"]
    for source in filter(None, (path, kept)):
        try:
            with open(source, "rb") as file:
                if has_then(file.fileno(), then):
                    if source == path and os.fstat(file.fileno()).st_size == then["size"]:
                        return None
                    return _replace(path, file.fileno(), then["size"])
        except FileNotFoundError:
            continue
    said = "neither the file nor its copy in the capture begins with what it had then"
    raise Failed("bring back", path, said, "begin a new conversation; the session itself can be rewound")


def _replace(path: str, source: int, size: int) -> str | None:
    """Write the first `size` bytes of `source` to `path`, at once. Returns where the file from before is kept."""
    aside = f"{path}.before-rewind"
    fd, new = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".waypoint-")
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, os.fstat(source).st_mode & 0o777)
            place = 0
            while place < size:
                piece = os.pread(source, min(_PIECE, size - place), place)
                if not piece:
                    break
                file.write(piece)
                place += len(piece)
        was_there = os.path.exists(path)
        if was_there:
            os.replace(path, aside)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        raise
    return aside if was_there else None


def _tail(fd: int, size: int) -> str:
    from _blake2 import blake2b  # hashlib takes milliseconds to load

    start = max(0, size - TAIL_BYTES)
    digest: str = blake2b(os.pread(fd, size - start, start), digest_size=16).hexdigest()
    return digest
