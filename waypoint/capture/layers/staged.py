"""What is being made beside the captures, as `<home>/hot/.<id>`, and gets a place of its own when it is whole: a
capture that comes back from the store, or what is to be attached to one. Whoever makes one dooms its id before.
"""

from pathlib import Path

from waypoint.capture.layers.hot import Hot
from waypoint.linux.storage.deep import remove_path
from waypoint.model.ids import is_id


def place(hot: Hot, ident: str) -> Path:
    """Where it is made."""
    return hot.folder / f".{ident}"


def unfinished(hot: Hot) -> list[str]:
    """The ids of all that is being made, or was when a daemon died."""
    hidden = [folder.name[1:] for folder in hot.folder.iterdir() if folder.name.startswith(".")]
    return [ident for ident in hidden if is_id(ident)]


def remove(hot: Hot, ident: str) -> None:
    """Remove what is still there. Raises OSError."""
    remove_path(place(hot, ident))
