"""Having work on the store done by programs of their own (capture/storing/store_program.py)."""

from collections.abc import Collection, Sequence

from waypoint.capture import steps
from waypoint.capture.storing.orders import Inspect, StoreOrder
from waypoint.model.errors import StoreDamaged
from waypoint.service.background import order_process
from waypoint.service.background.order_process import Expected, OrderProgram, Reports
from waypoint.service.home import Home
from waypoint.store.belonging import keep_up
from waypoint.store.content.store_folder import StoreFolder, has_content

_NICE, _NICEST = 10, 19


async def carry_out(
    home: Home,
    order: StoreOrder,
    kind: type[Expected],
    job: Reports | None = None,
    *,
    is_urgent: bool = True,
    fds: Sequence[int] = (),
) -> Expected:
    """Have the order carried out, and return its outcome, of the type `kind`. `job`: is told of the progress.
    `is_urgent`: somebody waits for it; else it has only what all others leave of the processors. `fds`: descriptors
    that the order names; they are closed here when the program has them, or if none is started. If the caller is
    cancelled, the program ends, and then the cancellation goes on. Raises WaypointError; StoreDamaged if the store is
    not there that has images.

    The programs rest while a session stands still (`Quiet`), and are kept for further orders. Not so one that has got
    descriptors, and perhaps a passphrase with them.
    """
    kept, on = home.kept_programs, f"the store {order.store}"
    words = (str(_NICE if is_urgent else _NICEST), str(kept.gate.fd), steps.armed())
    program = OrderProgram("capture/storing/store_program.py", on, words, tuple(fds), (kept.gate.fd,), kept.group)
    try:
        if not isinstance(order, Inspect):
            check_there(home, order.store)
    except BaseException:
        program.close_fds()  # or who reads the other end of a pipe waits for ever
        raise
    return await order_process.carry_out(program, order, kind, job, kept=None if fds else kept)


def is_missing(home: Home, store: str) -> bool:
    """Whether the home has no store, at the path `store`, and needs none. Raises StoreDamaged if it needs one."""
    check_there(home, store)
    return not StoreFolder(store).exists()


def check_there(home: Home, store: str) -> None:
    """Raise StoreDamaged if nothing is at the path `store` of what names.db knows there: a new store would have other
    keys, and would be in the way when that is put back.
    """
    folder = StoreFolder(store)
    if folder.exists() or has_content(folder):
        return
    if images := home.names.images():
        said = f"it is gone, and names.db knows {len(images)} images in it"
        raise StoreDamaged("open", f"the store {store}", said, put_back_or_give_up(home, images))


def put_back_or_give_up(home: Home, images: Collection[str]) -> str:
    """The next step where these images cannot be read."""
    refs, live = home.names.refs(), {row.branch for row in home.names.live()}
    standings = home.names.standings([ref.capture for ref in refs.values() if ref.capture])
    names = [name for name, ref in refs.items() if ref.capture and standings[ref.capture].image in images]
    going = [name for name in names if name not in live]
    steps = [f"waypoint checkpoint NEW -b {name}" for name in names if name in live]
    steps += [f"waypoint rm {' '.join(going)}"] if going else []
    given_up = "; ".join([*steps, "gc with --keep-operations 0"])
    return f"put the store's files back from a backup, or give it up ({given_up})"


def keep_record(home: Home) -> None:
    """What is on record survives a power loss on return, and the home's mark tells of it. Blocks. Raises Failed."""
    home.names.sync()
    keep_up(home.path, home.names)
