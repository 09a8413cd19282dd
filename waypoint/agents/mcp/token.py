"""The token of the HTTP server, in a file that only its user can read."""

import os
import secrets
import stat

from waypoint.model.errors import Failed, UsageProblem

_LEAST = 16
_MOST_BYTES = 4096


def token_in(path: str) -> str:
    """The token in the file at `path`, which is made with a random one if it is missing. Raises UsageProblem if others
    could read or replace it.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        _make(path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Failed("open", f"the token file {path}", error.strerror or str(error), "name another file") from error
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            said = "it is not a file that only you can access"
            raise UsageProblem("use", f"the token file {path}", said, f"chmod 600 {path}, or name another file")
        token = file.read(_MOST_BYTES).decode("ascii", "replace").strip()
    if len(token) < _LEAST or not token.isprintable() or " " in token:
        said = f"it has no token, which is one word of at least {_LEAST} characters"
        raise UsageProblem("use", f"the token file {path}", said, "remove it: then a new one is made")
    return token


def _make(path: str) -> None:
    """Make the file with a random token, whole or not at all. Does nothing if it exists."""
    if os.path.lexists(path):
        return
    new = f"{path}.{secrets.token_hex(4)}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(f"{secrets.token_urlsafe(32)}\n".encode())
        os.link(new, path)
    except FileExistsError:
        return  # another server has made it
    finally:
        os.unlink(new)
