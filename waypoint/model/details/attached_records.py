"""The record of what a user has attached to a capture."""

import msgspec

ATTACHED_TO = "attached/"
"""How the names of an image's parts begin that were attached (docs/format.md); the kind follows."""


class AttachedLayer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file or a folder, in the capture's hot folder.

    `size_bytes`: of its files, without their holes. `files`: how many these are, links among them. `stamp`: by which
    the same file or folder is known again when it is attached once more (parcel/stamping.py); "": it is not.
    `left_out`: in words, the first of what was left out of the folder.
    """

    size_bytes: int
    files: int
    is_folder: bool
    stamp: str = ""
    left_out: list[str] = []
