"""What the program for work on the store is told, and what it answers."""

import msgspec

from waypoint.capture.base_files.mentioned import BaseFile
from waypoint.model.records import Capture, IdMap

MOST_OF_BASE = 1 << 30


class OfBase(msgspec.Struct, frozen=True, kw_only=True):
    """Of the files of the base that an image has. `twin`: an image of the very same processes; "": none.
    `alike`: images that were put here and may have the same ones. `most_bytes`: what they may have in all. `hidden`:
    folders of the machine that no session sees, so that an image has nothing of them.
    """

    hidden: list[str] = []
    twin: str = ""
    alike: list[str] = []
    most_bytes: int = MOST_OF_BASE


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A capture on disk, and where it comes from.

    `tree`: the path of its upper tree, which is sealed. `hot`: its folder in the hot area. `images`: that of
    CRIU's images. `parents`: the images of its
    parents. `earlier`: an image that may have much in common with it, "": none. `before`: the path that the tree of
    that image's capture has, or had, "": none. `is_comparable`: whether it is there, and btrfs tells what is different.
    """

    capture: Capture
    tree: str
    hot: str
    images: str
    parents: list[str]
    earlier: str = ""
    before: str = ""
    is_comparable: bool = False
    base: OfBase = OfBase()


class Ingest(msgspec.Struct, frozen=True, kw_only=True, tag="ingest"):
    """Put a capture into the store. Answered by Ingested."""

    store: str
    source: Source


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """`image`: the image's id. `added_bytes`: by how much the store grew. `parts`: as of Standing; none in an answer to
    TakeExport, as Inspected has told them.
    """

    image: str
    added_bytes: int
    parts: tuple[tuple[str, str], ...] = ()


class Recall(msgspec.Struct, frozen=True, kw_only=True, tag="recall"):
    """Bring a capture back from the store. `tree`: the path of an upper tree without anything in it. `hot`: the path of
    its folder in the hot area, which is not there yet. `ids`: those that its processes are to have, None if it has
    none. Answered by Recalled.
    """

    store: str
    image: str
    tree: str
    hot: str
    ids: IdMap | None = None


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """All of the capture is there."""


class BringBase(msgspec.Struct, frozen=True, kw_only=True, tag="bring-base"):
    """Bring files of the base that the image has into the upper tree at the path `tree`, to lie over the base at the
    path `base`; those whose content the base has do not come. Answered by BroughtBase.
    """

    store: str
    image: str
    base: str
    tree: str
    files: list[BaseFile]


class BroughtBase(msgspec.Struct, frozen=True, kw_only=True):
    """`files`: those that are in the tree now."""

    files: list[BaseFile]


class Verify(msgspec.Struct, frozen=True, kw_only=True, tag="verify"):
    """Look for damage. `images`: those that must be there; `only` at them. `read_data`: read every byte of the store;
    `read_images`: read every object of the images that are looked at. Answered by Verified.
    """

    store: str
    images: list[str]
    read_data: bool
    only: bool = False
    read_images: bool = False


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """`images`, `objects`: how many were looked at. `problems`: of packs, in words. `lacking`: by image, what is wrong
    with it, in words. `missing`: images that must be there. `gone`: packs that are not there, in words, if an image
    lacks something; not looked for with `only`.
    """

    images: int
    objects: int
    problems: list[str]
    lacking: dict[str, str]
    missing: list[str]
    gone: list[str] = []


class LookOver(msgspec.Struct, frozen=True, kw_only=True, tag="look-over"):
    """Look quickly whether the store can be opened, and has these images and all packs that it should, in their
    lengths. Answered by LookedOver.
    """

    store: str
    images: list[str]


class LookedOver(msgspec.Struct, frozen=True, kw_only=True):
    """`problems`: in words."""

    problems: list[str]


class Weigh(msgspec.Struct, frozen=True, kw_only=True, tag="weigh"):
    """Tell what images take of the store. Answered by Weighed."""

    store: str
    images: list[str]


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """By image, the bytes of its objects as they lie in the store, also of such that other images have, too."""

    sizes: dict[str, int]


class Compact(msgspec.Struct, frozen=True, kw_only=True, tag="compact"):
    """Remove all images but `keep`, and what no image needs. Answered by Compacting."""

    store: str
    keep: list[str]


class Compacting(msgspec.Struct, frozen=True, kw_only=True):
    """`images`: how many were removed. `freed_bytes`: by how much the store has become smaller. `waiting_bytes`: what
    goes when nobody reads any more. `damaged`: images that cannot be read, with why: nothing else is removed then, as
    what they need is not known.
    """

    images: int
    freed_bytes: int = 0
    waiting_bytes: int = 0
    damaged: dict[str, str] = {}


class Export(msgspec.Struct, frozen=True, kw_only=True, tag="export"):
    """Write an export to the descriptor `fd`. `images`: which, those that others go on from first. `name`: what the
    last one is called, "" if nothing. `absent`: how many that they go on from are left out. `key`: the private key that
    signs it, in PEM, "": none. `passphrase`: what it is encrypted with, "": it is not. Answered by Sent.
    """

    store: str
    fd: int
    images: list[str]
    name: str
    absent: int
    key: str
    passphrase: str


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """`objects`, `size_bytes`: of the export."""

    objects: int
    size_bytes: int


class Inspect(msgspec.Struct, frozen=True, kw_only=True, tag="inspect"):
    """Look whether the export in the file `fd`, a file without a name, is what it should be. `signer`: the public key
    of who must have signed it, "": anybody or nobody. `most_bytes`: what the files of one image may take on disk. The
    store is not looked at. Answered by Inspected.
    """

    store: str
    fd: int
    passphrase: str
    signer: str
    most_bytes: int


class ArrivedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of an export. `parents`: the images that it goes on from. `parts`: as of Standing. `capture`: what it
    was made of, on the machine and in the home where that was.
    """

    image: str
    parts: tuple[tuple[str, str], ...]
    parents: list[str]
    capture: Capture


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """What an export has. `images`: those that others go on from first. `name`: as of Export. `signer`: the
    public key of who has signed it, in hex; "": nobody. `digest`: of the whole, in hex.
    """

    images: list[ArrivedImage]
    name: str
    objects: int
    signer: str
    digest: str


class TakeExport(msgspec.Struct, frozen=True, kw_only=True, tag="take-in"):
    """Put the images of the export in the file `fd`, of which `digest` was told before, into the store. Answered by
    Ingested, which tells of the last image.
    """

    store: str
    fd: int
    passphrase: str
    digest: str


StoreOrder = Ingest | Recall | BringBase | Verify | LookOver | Weigh | Compact | Export | Inspect | TakeExport
StoreOutcome = Ingested | Recalled | BroughtBase | Verified | LookedOver | Weighed | Compacting | Sent | Inspected
