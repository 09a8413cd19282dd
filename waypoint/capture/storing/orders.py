"""What the daemon asks the store's own process to do, and what this process answers: one JSON object on each line."""

from typing import Any, Literal

import msgspec

from waypoint.model.conditions import Degradation
from waypoint.model.records import Capture, ImageConfig, User


class StoredPart(msgspec.Struct, frozen=True, kw_only=True):
    """A folder on disk, and its name in a layer of the image. The rest as in `StoredFolder` (layers/layer.py)."""

    layer: str
    name: str
    path: str
    content: Literal["session", "user", "pages", "named", "own"] = "own"
    only: list[str] = []


class Ingest(msgspec.Struct, frozen=True, kw_only=True, tag="ingest"):
    """Store the parts of a capture as an image. `layers`: by kind, the facts for the manifest. `earlier`: the id of the
    image of the capture before it, if there is one, and `earlier_tree` the path of this capture's files, if they are on
    disk. `again`: the image in the store is damaged; read everything, and replace what is damaged. Answer: Ingested.
    """

    store: str
    parts: list[StoredPart]
    layers: dict[str, dict[str, Any]]
    parents: list[str]
    platform: dict[str, Any]
    facts: dict[str, Any]
    earlier: str = ""
    earlier_tree: str = ""
    again: bool = False


class Gather(msgspec.Struct, frozen=True, kw_only=True, tag="gather"):
    """Copy folders of the machine, each with its place in the folder `target`, without what is mounted in them.
    `hidden`: paths of the machine that are not copied; `emptied`: those of folders that are copied without content.
    Answer: Gathered.
    """

    store: str
    folders: list[tuple[str, str]]
    target: str
    hidden: list[str] = []
    emptied: list[str] = []


class Unpack(msgspec.Struct, frozen=True, kw_only=True, tag="unpack"):
    """Unpack a container image into the empty folder `target`: an archive or the folder of an image layout at `path`,
    which is opened with the rights of `user`. Answer: Unpacked.
    """

    store: str
    path: str
    user: User
    target: str


class Recall(msgspec.Struct, frozen=True, kw_only=True, tag="recall"):
    """Extract parts of an image into folders, which are made if they are missing. Of the contents of files of the base
    (layers/base_files.py), only those that the machine lacks are extracted, or those in `only` of the part. Answer:
    None.
    """

    store: str
    image: str
    parts: list[StoredPart]
    base: str


class Verify(msgspec.Struct, frozen=True, kw_only=True, tag="verify"):
    """Look for damage. Answer: a list of Damage."""

    store: str
    read_data: bool


class Check(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    """Look whether the store has all objects of an image. Answer: a list of the problems, as text."""

    store: str
    image: str


class Collect(msgspec.Struct, frozen=True, kw_only=True, tag="gc"):
    """Remove all images but `keep`, and what only they need. Answer: Freed."""

    store: str
    keep: list[str]


class Measure(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """Find by how many bytes each image makes the store larger than the images before it do. Answer: a list of numbers,
    in the order of `images`.
    """

    store: str
    images: list[str]


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file of an archive. `key`: the path of the key that signs it, or that must have signed it; "": none. Both are
    opened with the rights of `user`.
    """

    path: str
    user: User
    key: str = ""


class Export(msgspec.Struct, frozen=True, kw_only=True, tag="export"):
    """Write images, parents first, to a new file. `records`: JSON about the captures. `scratch`: an empty folder.
    Answer: Exported.
    """

    store: str
    file: ArchiveFile
    scratch: str
    name: str
    images: list[str]
    records: str
    created: str
    oci_layers: bool


class Inspect(msgspec.Struct, frozen=True, kw_only=True, tag="inspect"):
    """Read and check an archive. `max_bytes`: what an image may have on disk. `may_be_privileged`: whether files may
    have setuid bits and capabilities. Answer: Inspected.
    """

    store: str
    file: ArchiveFile
    max_bytes: int
    may_be_privileged: bool


class Import(msgspec.Struct, frozen=True, kw_only=True, tag="import"):
    """Add the images of an archive that was inspected. `digest`: of its manifest. Answer: Imported."""

    store: str
    file: ArchiveFile
    digest: str
    max_bytes: int


class ReadImage(msgspec.Struct, frozen=True, kw_only=True, tag="read-image"):
    """Answer: the manifest of the image, as JSON."""

    store: str
    image: str


class Unlock(msgspec.Struct, frozen=True, kw_only=True, tag="unlock"):
    """Answer: the master key of an encrypted store in hex, which `secret` unlocks: a passphrase, or the content of the
    key file.
    """

    store: str
    secret: str


StoreOrder = (
    Ingest | Gather | Unpack | Recall | Verify | Check | Collect | Measure | Export | Inspect | Import | ReadImage
)
Order = StoreOrder | Unlock


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One line that the process reads. `key`: the master key of an encrypted store in hex; a pipe is the only way by
    which it gets there, since others may read arguments and environments.
    """

    order: Order
    key: str = ""


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """`image`: its id. `content_bytes`: what was read. `new_bytes`: by how much the store has grown. `ms`: how long it
    took. `changed_only`: whether only changed files were read.
    """

    image: str
    content_bytes: int
    new_bytes: int
    ms: float
    changed_only: bool


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """`devices`: the number of device nodes, which are not copied; `device`: the first of them. `left_out`: how many
    files or folders could not be read, and `example` the first of them, with the reason.
    """

    devices: int
    device: str
    left_out: int
    example: str


class Unpacked(msgspec.Struct, frozen=True, kw_only=True):
    """`config`: how the image wants its programs to be started. `left_out`: what the folder lacks of the image."""

    config: ImageConfig
    left_out: list[Degradation]


class Damage(msgspec.Struct, frozen=True, array_like=True):
    """As in store/upkeep.py."""

    said: str
    images: list[str]


class Freed(msgspec.Struct, frozen=True, array_like=True):
    """As in store/upkeep.py."""

    bytes: int
    images: int


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """`digest`: of the archive's manifest."""

    digest: str
    size_bytes: int


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """A capture in an archive. Its `parents` are the ids of captures before it in the list. `image`: None if only its
    record is in the archive. `name`: of its checkpoint, or "". `base`: of a pinned base, its name in the home that it
    comes from, or "".
    """

    image: str | None
    capture: Capture
    name: str = ""
    base: str = ""


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """`digest`: of the archive's manifest. `captures`: parents first; the last one, which has a name, was exported."""

    digest: str
    captures: list[Arrived]


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    new_bytes: int


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the answer. `progress`: bytes so far; more lines follow. `error`: the parts of a WaypointError."""

    progress: int | None = None
    result: Any = None
    error: dict[str, Any] | None = None
