"""A change of a file as a patch in git's format."""

import stat
from typing import NamedTuple

from waypoint.upper import text_diff

MOST_BYTES = 1 << 20
"""Content of larger files is not compared line by line."""


class File(NamedTuple):
    """One side of a change. `content`: a link's content is its target; None: it cannot be read."""

    mode: int
    content: bytes | None


class Lines(NamedTuple):
    """`insertions`, `deletions`: None if the content is no text, is larger than MOST_BYTES or cannot be read."""

    insertions: int | None
    deletions: int | None
    patch: str = ""


def compare(path: str, old: File | None, new: File | None, *, with_patch: bool) -> Lines:
    """Compare two files or links, of which one may be missing. `path`: relative to the root of the patch."""
    texts = [b"" if one is None else one.content for one in (old, new)]
    if any(text is None or len(text) > MOST_BYTES or not _is_text(text) for text in texts):
        return Lines(None, None, _binary(path, old, new) if with_patch else "")
    if old is not None and new is not None and stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        removed, added = (
            compare(path, *pair, with_patch=with_patch) for pair in ((old, None), (None, new))
        )  # as git shows it
        return Lines(added.insertions, removed.deletions, removed.patch + added.patch)
    found = text_diff.compare(texts[0] or b"", texts[1] or b"", with_hunks=with_patch)
    patch = _head(path, old, new, has_hunks=bool(found.hunks)) + b"".join(found.hunks) if with_patch else b""
    return Lines(found.insertions, found.deletions, patch.decode())


def _is_text(content: bytes) -> bool:
    """Whether the content is text that JSON can have. git also takes other encodings for text."""
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def _binary(path: str, old: File | None, new: File | None) -> str:
    head = _head(path, old, new, has_hunks=False).decode()
    names = [name.decode() for name in _names(path, old, new)]
    return f"{head}Binary files {names[0]} and {names[1]} differ\n"


def _head(path: str, old: File | None, new: File | None, *, has_hunks: bool) -> bytes:
    lines = [b"diff --git %s %s" % (quoted(f"a/{path}"), quoted(f"b/{path}"))]
    if old is None and new is not None:
        lines.append(b"new file mode %s" % git_mode(new.mode))
    elif new is None and old is not None:
        lines.append(b"deleted file mode %s" % git_mode(old.mode))
    elif old is not None and new is not None and git_mode(old.mode) != git_mode(new.mode):
        lines += [b"old mode %s" % git_mode(old.mode), b"new mode %s" % git_mode(new.mode)]
    elif not has_hunks:
        return b""
    if has_hunks:
        lines += [b"%s %s" % pair for pair in zip((b"---", b"+++"), _names(path, old, new), strict=True)]
    return b"".join(line + b"\n" for line in lines)


def _names(path: str, old: File | None, new: File | None) -> tuple[bytes, bytes]:
    return (
        b"/dev/null" if old is None else quoted(f"a/{path}"),
        b"/dev/null" if new is None else quoted(f"b/{path}"),
    )


def git_mode(mode: int) -> bytes:
    """A mode as git has it: 120000 for a link; of a file's permissions only whether its owner may execute it."""
    if stat.S_ISLNK(mode):
        return b"120000"
    return b"100755" if mode & stat.S_IXUSR else b"100644"


_ESCAPES = {0x07: b"a", 0x08: b"b", 0x09: b"t", 0x0A: b"n", 0x0B: b"v", 0x0C: b"f", 0x0D: b"r", 0x22: b'"', 0x5C: b"\\"}


def quoted(path: str) -> bytes:
    """A path as git writes it: in quotes, with escapes, if it has control characters, quotes or bytes that are not
    UTF-8.
    """
    data = path.encode(errors="surrogateescape")
    if path.isprintable() and '"' not in path and "\\" not in path:
        return data
    return b'"' + b"".join(map(_escaped, data)) + b'"'


def _escaped(byte: int) -> bytes:
    if byte in _ESCAPES:
        return b"\\" + _ESCAPES[byte]
    return bytes([byte]) if 0x20 <= byte < 0x7F else b"\\%03o" % byte
