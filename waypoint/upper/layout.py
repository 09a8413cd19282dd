"""The layout of an upper tree: one folder for each mount of the session whose changes the tree holds.

```
<tree>/m0/upper, <tree>/m0/work                  of the root
<tree>/m%2Fhome/upper, <tree>/m%2Fhome/work      of the mount at /home
```
A folder is named after the mount point, percent-encoded. It is not numbered, because the host's mounts come and go, and
the changes of one mount could then appear in another.
"""

import os
from urllib.parse import quote, unquote_to_bytes

from waypoint.model.records import pinned_id

ROOT_FOLDER = "m0"


def folder_of(target: str) -> str:
    """The name of the folder for the mount at `target`, an absolute path in the session."""
    return ROOT_FOLDER if target == "/" else f"m{quote(os.fsencode(target), safe='')}"


def target_of(folder: str) -> str:
    """The mount point for which a folder was made; the inverse of `folder_of`."""
    return "/" if folder == ROOT_FOLDER else os.fsdecode(unquote_to_bytes(folder[1:]))


def upper_of(tree: str, target: str = "/") -> str:
    """The path of the upper directory for the mount at `target`. `tree`: the path of the upper tree."""
    return f"{tree}/{folder_of(target)}/upper"


def base_folder(pool: str, base: str) -> str:
    """The folder below a session's overlays whose `Setting.base` is `base`. `pool`: the folder of the home's pool, in
    which a pinned base is the upper directory of its capture, whose tree has the capture's id.
    """
    pinned = pinned_id(base)
    return base if pinned is None else upper_of(f"{pool}/{pinned}")


def work_of(tree: str, target: str = "/") -> str:
    """The path of overlayfs's work directory for the mount at `target`."""
    return f"{tree}/{folder_of(target)}/work"
