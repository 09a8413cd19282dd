"""Any folder that a session may leave, for hypothesis: content with holes, modes, owners, times, attributes, links,
files with several names, whiteouts, FIFOs and sockets.
"""

import os
from dataclasses import dataclass, field

from hypothesis import strategies as st

from waypoint.linux.storage import filesystem

HOLE = 64 << 10
NAMES = st.binary(min_size=1, max_size=12).filter(lambda n: b"/" not in n and b"\0" not in n and n not in (b".", b".."))
IDS = st.sampled_from([0, 1, 1000, 65534, (1 << 32) - 2])
ATTRIBUTES = st.dictionaries(
    st.sampled_from(["user.a", "user.b\xff", "trusted.overlay.opaque", "trusted.overlay.redirect", "security.x"]),
    st.binary(max_size=40),
    max_size=2,
)


@dataclass(frozen=True)
class Facts:
    """What files of most kinds have."""

    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    attributes: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class AnyFile:
    """`kind`: `file`, whose `content` are pieces, each behind so many holes; `link`, to `text`; or `fifo`, `socket`,
    `whiteout`; or `again`: another name of a file that was made before.
    """

    kind: str
    facts: Facts
    content: list[tuple[int, bytes]]
    text: bytes


@dataclass(frozen=True)
class AnyFolder:
    facts: Facts
    inside: "dict[bytes, AnyFile | AnyFolder]"


FACTS = st.builds(Facts, st.integers(0, 0o7777), IDS, IDS, st.integers(0, (1 << 33) * 10**9), ATTRIBUTES)
FILES = st.builds(
    AnyFile,
    st.sampled_from(["file"] * 4 + ["again", "again", "link", "fifo", "socket", "whiteout"]),
    FACTS,
    st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=300)), max_size=3),
    st.binary(min_size=1, max_size=30).filter(lambda text: b"\0" not in text),
)


def _folders(below: "st.SearchStrategy[AnyFile | AnyFolder]") -> st.SearchStrategy[AnyFolder]:
    return st.builds(AnyFolder, FACTS, st.dictionaries(NAMES, below, max_size=5))


TREES: st.SearchStrategy[AnyFolder] = _folders(st.recursive(FILES, _folders, max_leaves=25))


def make_tree(path: bytes, tree: AnyFolder) -> None:
    """Make the folder, which is not there yet."""
    _make_folder(path, tree, [])


def _make_folder(path: bytes, tree: AnyFolder, made: list[bytes]) -> None:
    os.mkdir(path)
    for name, one in tree.inside.items():
        below = path + b"/" + name
        if isinstance(one, AnyFolder):
            _make_folder(below, one, made)
        elif one.kind == "again" and made:
            os.link(made[len(one.text) % len(made)], below)
        else:
            _make_file(below, one)
            if one.kind in ("file", "again"):
                made.append(below)
    _give(path, tree.facts, has_attributes=True)


def _make_file(path: bytes, one: AnyFile) -> None:
    match one.kind:
        case "link":
            os.symlink(one.text, path)
            os.chown(path, one.facts.uid, one.facts.gid, follow_symlinks=False)
            os.utime(path, ns=(0, one.facts.mtime), follow_symlinks=False)
            return
        case "fifo":
            os.mkfifo(path)
        case "socket":
            os.mknod(path, 0o140700)
        case "whiteout":
            filesystem.make_whiteout(os.fsdecode(path))
        case _:
            with open(path, "wb") as file:
                for holes, piece in one.content:
                    file.seek(holes * HOLE, os.SEEK_CUR)
                    file.write(piece)
    _give(path, one.facts, has_attributes=one.kind in ("file", "again"))


def _give(path: bytes, facts: Facts, *, has_attributes: bool) -> None:
    os.chown(path, facts.uid, facts.gid)
    os.chmod(path, facts.mode)
    for name, value in facts.attributes.items() if has_attributes else ():
        os.setxattr(path, name, value)
    os.utime(path, ns=(0, facts.mtime))


def blocks(path: bytes) -> dict[bytes, int]:
    """What each file takes, by its path below `path`, in blocks of 512 bytes."""
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            below = os.path.join(folder, name)
            found[os.path.relpath(below, path)] = os.lstat(below).st_blocks
    return found
