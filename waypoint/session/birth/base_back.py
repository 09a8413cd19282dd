"""The files of the base that restored processes need, where the machine has others by now (an upgrade), or is another
machine: those of the capture come between its upper and the base, for as long as the new session lives. Who looks at
the files of the capture sees them there, too.
"""

import asyncio

from waypoint.capture.captures import Captures, Held
from waypoint.model.errors import HostLacks, StoreDamaged
from waypoint.session.live.resources import Resources

_SHOWN = 3


async def bring_base(resources: Resources, held: Held, tree: str) -> list[str]:
    """Bring what is needed into the upper tree of the new session, at the path `tree`, before it is mounted. Returns,
    in words, what is not the machine's there. Raises CannotCapture, Failed.
    """
    captures = resources.captures
    if captures.bring_base is None or not await asyncio.to_thread(held.base.differing):
        return []
    try:
        with resources.writing():
            brought = await captures.bring_base(held, tree)
    except (HostLacks, StoreDamaged) as error:  # such as a key that is not there yet; perhaps CRIU does without
        return [f"files of the machine have changed since, and the capture's cannot be had: {error.said}"]
    shown = [file.shown for file in brought]
    if not shown:
        return []
    number = "a file" if len(shown) == 1 else f"{len(shown)} files"
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    listed = f"{', '.join(shown[:_SHOWN])}{more}"
    own = "that of the capture is" if len(shown) == 1 else "those of the capture are"
    return [f"{number} of the machine, which its processes have, changed since: {own} used in this session ({listed})"]


async def brought_to_see(captures: Captures, held: Held) -> str:
    """For who looks at the capture's files: the folder with those of the base that its image has and the machine has
    otherwise, in the form of an upper tree; "" if there are none. Raises HostLacks, StoreDamaged, CannotCapture,
    Failed: the machine's would be seen without a word.
    """
    if captures.bring_base is None or not await asyncio.to_thread(held.base.differing):
        return ""
    return held.base.brought if await captures.bring_base(held, "") else ""
