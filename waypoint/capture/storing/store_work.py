"""The work on the store, as `store_program.py` does it, order by order.

What an order does not need is not loaded for it: somebody may be waiting, and loading takes longer than most orders.
"""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from waypoint.capture import steps
from waypoint.capture.storing.order_program import Dialogue, serve
from waypoint.capture.storing.orders import (
    BringBase,
    Compact,
    Export,
    Ingest,
    Inspect,
    LookOver,
    Recall,
    Recalled,
    StoreOrder,
    StoreOutcome,
    TakeExport,
    Verify,
    Weigh,
)
from waypoint.linux.niceness import give_way, pass_gate
from waypoint.model.errors import HostLacks, StoreDamaged
from waypoint.model.packages import make_importable
from waypoint.model.paths import spelled
from waypoint.store.content import write_steps
from waypoint.store.content.home_key import TYPE_IT, key_of, read_secret
from waypoint.store.content.opened import Store, make_store, open_store
from waypoint.store.packs.ciphers import PLAIN

Progressed = Callable[[int, int | None], None]
"""Told how many bytes are done, and of how many, if that is known."""


def main() -> NoReturn:
    """Carry out the orders on stdin, as nice as the first argument says, and rest while the gate is shut of which the
    second one is the descriptor; the third one is the folder of steps to stop at. Nothing of the store is open between
    two orders, and its key is read for each: who takes it away keeps the next order from being carried out.
    """
    give_way(int(sys.argv[1]))

    gate = int(sys.argv[2])
    if folder := "".join(sys.argv[3:]):  # a daemon of an earlier version gives none
        steps.arm(folder)
        write_steps.listener = steps.reach

    def work(order: StoreOrder, dialogue: Dialogue) -> StoreOutcome:
        def told(done: int, total: int | None) -> None:
            pass_gate(gate)
            dialogue.told_bytes(done, total)

        return carry_out(order, told)

    serve(StoreOrder, work, lambda order: f"the store {order.store}")  # type: ignore[arg-type]


def carry_out(order: StoreOrder, told: Progressed) -> StoreOutcome:
    """Raises WaypointError, OSError."""
    if isinstance(order, Inspect):
        make_importable("cryptography")
        from waypoint.capture.storing.importing import inspect

        return inspect(order)
    store = _opened(order.store, makes=isinstance(order, Ingest | TakeExport))
    try:
        outcome = _of_store(store, order, told)
        if isinstance(order, Ingest | TakeExport | Compact) and os.path.exists(store.folder.damaged):
            from waypoint.store.content.compaction import mend

            mend(store)
        return outcome
    finally:
        store.close()


def _of_store(store: Store, order: StoreOrder, told: Progressed) -> StoreOutcome:
    if isinstance(order, Ingest):
        return _ingest(store, order, told)
    if isinstance(order, Recall):
        return _recall(store, order)
    if isinstance(order, BringBase):
        return _bring_base(store, order)
    if isinstance(order, Verify | LookOver | Weigh | Compact):
        return _care(store, order)
    assert isinstance(order, Export | TakeExport)
    return _exchange(store, order, told)


def _ingest(store: Store, order: Ingest, told: Progressed) -> StoreOutcome:
    sys.modules.pop("typing_extensions", None)  # it is None, see `packages.begin`
    make_importable("pyfastcdc")
    from waypoint.capture.storing.ingestion import ingest

    return ingest(store, order.source, told)


def _recall(store: Store, order: Recall) -> StoreOutcome:
    from waypoint.capture.storing.recalling import recall

    recall(store, order)
    return Recalled()


def _bring_base(store: Store, order: BringBase) -> StoreOutcome:
    from waypoint.capture.storing.recalling import bring_base

    return bring_base(store, order)


def _care(store: Store, order: Verify | LookOver | Weigh | Compact) -> StoreOutcome:
    from waypoint.capture.storing.store_care import look_over, remove_all_but, verify, weigh

    if isinstance(order, Compact):
        return remove_all_but(store, order)
    if isinstance(order, LookOver):
        return look_over(store, order)
    return verify(store, order) if isinstance(order, Verify) else weigh(store, order)


def _exchange(store: Store, order: Export | TakeExport, told: Progressed) -> StoreOutcome:
    make_importable("cryptography")
    if isinstance(order, Export):
        from waypoint.capture.storing.exporting import export

        return export(store, order, lambda size: told(0, size))
    from waypoint.capture.storing.importing import take_in

    return take_in(store, order)


def _opened(path: str, *, makes: bool) -> Store:
    """`makes`: make one if there is none. Raises StoreDamaged if there is none, and it is not to be made."""
    key = key_of(os.path.dirname(path))
    secret = b""
    if key is not None:
        make_importable("cryptography")
        secret = read_secret(key)
    try:
        store = open_store(path, secret)
    except FileNotFoundError as error:
        if not makes:
            raise StoreDamaged(
                "open", f"the store {path}", "it is not there", "put the store of this home back"
            ) from error
        return make_store(path, secret, passphrase=key is not None and key.passphrase)
    except HostLacks as error:
        if key is not None and key.is_typed:
            error.next_step = TYPE_IT
        raise
    if key is not None and store.cipher == PLAIN:
        store.close()
        said = "it is not encrypted, and the home's config.json says that it is: it is another one"
        next_step = "put the store of this home back"
        if not store.images.list():  # `setup --encrypt` was killed before it had put this one away
            next_step = f"have it removed, it has no images: {spelled(os.path.dirname(path), 'setup', '--encrypt')}"
        raise StoreDamaged("open", f"the store {path}", said, next_step)
    return store
