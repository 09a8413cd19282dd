"""CRIU's names for a session's external mounts, those whose content is not in the image (criu(8), --external)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Externals:
    """CRIU's options for the external mounts.

    `dump`, `restore`: the values of --external. `root`: for a restore, the folder where the session's root is mounted.
    """

    dump: tuple[str, ...]
    restore: tuple[str, ...]
    root: str


def name_externals(targets: Sequence[str], folder: str) -> Externals:
    """Number the external mounts with the mount points `targets`, which must contain `/`.

    `folder`: where the mounts are found for a restore, as `m0`, `m1`, ... The numbers are stored in CRIU's images, so a
    restore needs the same list in the same order.
    """
    return Externals(
        dump=tuple(f"mnt[{target}]:m{number}" for number, target in enumerate(targets)),
        restore=tuple(f"mnt[m{number}]:{folder}/m{number}" for number in range(len(targets))),
        root=f"{folder}/m{targets.index('/')}",
    )
