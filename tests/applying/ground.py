"""A folder that stands for the machine, and an overlay over it as a session has."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from waypoint.branch.applying.apply_records import (
    ApplyOrder,
    ApplyOutcome,
    ApplyPlace,
    Recovered,
    RecoverOrder,
    RevertOrder,
)
from waypoint.branch.applying.apply_work import Confirm, carry_out
from waypoint.launch.externals import OVERLAY_OPTIONS
from waypoint.linux.storage import mounts
from waypoint.model.ids import random_hex


class Layer(NamedTuple):
    """A mount of the machine, and the overlay over it. `target`: where it is, from the root of the machine."""

    target: str
    upper: Path
    work: Path

    def begin(self, base: Path) -> None:
        facts = os.stat(base)
        os.chown(self.upper, facts.st_uid, facts.st_gid)
        os.chmod(self.upper, facts.st_mode)
        os.utime(self.upper, ns=(facts.st_atime_ns, facts.st_mtime_ns))


class Ground:
    """`base`: the machine. `view`: what the session sees while it is mounted. `journals`: those of changes. `last`:
    the id of the last one.
    """

    def __init__(self, folder: Path) -> None:
        self.base, self.view, self.journals = folder / "machine", folder / "view", folder / "applied"
        self.base.mkdir()
        self.view.mkdir()
        self._layers = [self._layer("")]
        self.since_ns = 0
        self.hidden: list[str] = []
        self.seen: list[str] = []
        self.reverts: list[str] = []
        self.last = ""

    def _layer(self, target: str) -> Layer:
        made = Layer(target, *(self.base.parent / f"{kind}{target.replace('/', '-')}" for kind in ("upper", "work")))
        made.upper.mkdir()
        made.work.mkdir()
        return made

    def mount_inner(self, target: str) -> None:
        """Another file system of the machine, which the session sees through an overlay of its own."""
        (self.base / target).mkdir()
        mounts.mount("tmpfs", self.base / target, "tmpfs")
        self._layers.append(self._layer(f"/{target}"))
        self.hidden.append(f"/{target}")  # for the outer one: the inner one lies below none

    def begin(self) -> None:
        """The branch begins now: what the machine has is what the session sees."""
        for layer in self._layers:
            layer.begin(Path(f"{self.base}{layer.target}"))
        self.since_ns = time.time_ns()

    @contextmanager
    def session(self) -> Iterator[Path]:
        """The session's view, mounted."""
        with ExitStack() as held:
            for layer in self._layers:
                layers = f"lowerdir={self.base}{layer.target},upperdir={layer.upper},workdir={layer.work}"
                point = f"{self.view}{layer.target}"
                mounts.mount("overlay", point, "overlay", 0, f"{layers},{OVERLAY_OPTIONS}")
                held.callback(mounts.umount, point)
            yield self.view

    def wait_for_clock(self) -> None:
        """Until what is changed now has a later time than the beginning: the kernel's clock for files has ticks."""
        probe = self.base.parent / "probe"
        while True:
            probe.write_text("")
            if os.stat(probe).st_ctime_ns > self.since_ns:
                return

    def apply(
        self, *chosen: str, dry_run: bool = False, force: bool = False, confirm: Confirm | None = None
    ) -> ApplyOutcome:
        ident = self._new_id()
        places = [
            ApplyPlace(
                target=layer.target or "/",
                upper=str(layer.upper),
                machine=f"{self.base}{layer.target}",
                hidden=[one for one in self.hidden if one != layer.target],
            )
            for layer in self._layers
        ]
        order = ApplyOrder(
            journals=str(self.journals),
            ident=ident,
            branch="main",
            places=places,
            since_ns=self.since_ns,
            chosen=list(chosen),
            seen=self.seen,
            reverts=self.reverts,
            dry_run=dry_run,
            force=force,
        )
        return self._carried_out(order, ident, confirm)

    def revert(self, of: str, later: Sequence[str] = (), *, force: bool = False) -> ApplyOutcome:
        ident = self._new_id()
        order = RevertOrder(
            journals=str(self.journals),
            ident=ident,
            branch="main",
            of=of,
            later=[*self.reverts, *later],
            dry_run=False,
            force=force,
        )
        found = self._carried_out(order, ident, None)
        self.reverts += [ident] if ident in self.recorded else []
        return found

    def _carried_out(self, order: ApplyOrder | RevertOrder, ident: str, confirm: Confirm | None) -> ApplyOutcome:
        found = carry_out(order, lambda _: None, confirm or (lambda *_: self._record(ident)))
        assert isinstance(found, ApplyOutcome)
        return found

    @property
    def recorded(self) -> list[str]:
        """The ids of journals in the operation log: a file, so that children can write it."""
        log = self.base.parent / "log"
        return log.read_text().split() if log.exists() else []

    def _record(self, ident: str) -> None:
        with open(self.base.parent / "log", "a") as log:
            log.write(f"{ident}\n")

    def recover(self) -> Recovered:
        order = RecoverOrder(journals=str(self.journals), recorded=self.recorded)
        found = carry_out(order, lambda _: None, lambda _: None)
        assert isinstance(found, Recovered)
        return found

    def _new_id(self) -> str:
        self.last = random_hex(4)
        return self.last

    def beside(self) -> list[Path]:
        """What is left beside files of the machine."""
        return list(self.base.rglob(".waypoint-*"))


def furnish(ground: Ground) -> None:
    """All kinds of actions, several of each, in several folders; in `inner`, which may be a mount, some."""
    inner = ("inner/edited", "inner/gone")
    for path in ("edited", "gone", "in/edited", "in/gone", "in/old/a", "in/old/b/c", "in/moved/d", "in/kept", *inner):
        place = ground.base / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(path * 1000)
    os.link(ground.base / "in/kept", ground.base / "in/linked")
    (ground.base / "in").chmod(0o2750)
    ground.begin()
    with ground.session() as view:
        for path in ("edited", "in/edited", "in/made", "in/new/x", "in/new/y/z", "inner/edited", "inner/made"):
            (view / path).parent.mkdir(parents=True, exist_ok=True)
            (view / path).write_text("by the session")
        (view / "gone").unlink()
        (view / "in/gone").unlink()
        (view / "inner/gone").unlink()
        (view / "in/old/b/c").unlink()
        (view / "in/old/b").rmdir()
        (view / "in/old/a").unlink()
        (view / "in/old").rmdir()
        (view / "in/old").write_text("a file now")
        (view / "in/moved").rename(view / "in/moved there")
        (view / "in").chmod(0o700)
