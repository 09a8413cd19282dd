"""The record of a pinned base: all of it follows from the id of its image."""

import time

import msgspec

from waypoint.model.ids import ID_HEX_DIGITS
from waypoint.model.records import NO_BASE, Capture, FilesLayer, ImageConfig, Setting, Standing, User, layers_of
from waypoint.records.change import Change

_ROOT = User(name="root", uid=0, gid=0, groups=[0], home="/root", shell="/bin/sh")
SETTING = Setting(base=NO_BASE, binds=[], net="none", user=_ROOT, cwd="/", env={}, command=[])
"""Nothing in it depends on the machine, since it is a part of the image."""


def base_id(image: str) -> str:
    """The id of the base with this image."""
    return image[:ID_HEX_DIGITS]


def capture_of(ident: str, image: ImageConfig | None = None) -> Capture:
    """The capture of the base with this id. `image`: of the container image with its files."""
    return Capture(
        id=ident,
        branch="base",
        parents=[],
        created=time.time(),
        tier="files",
        layers=layers_of(FilesLayer(tree=ident)),
        setting=msgspec.structs.replace(SETTING, image=image),
        reason="checkpoint",
    )


def record_base(change: Change, capture: Capture, image: str) -> None:
    """Record a base whose image is durable, unless it is recorded already."""
    if not change.captures_of([capture.id], may_lack=True):
        change.add(capture)
    change.set_standing(capture.id, Standing(image=image, durable=True))
