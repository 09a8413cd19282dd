"""What the areas about checkpoints, forks and restores share: a home with live sessions, and bare CRIU on them."""

import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.bench.frame import Sizes
from tests.bench.inside import Spinner
from tests.bench.load import fill_history
from tests.bench.raw_criu import RawCriu
from tests.homes import Home, open_home
from tests.needs import missing
from tests.places import make_temp_root
from waypoint.client.sdk import Client, Session

USER = "nobody"  # has no rc files, which would be measured too
MB = 1_000_000
CROWD = 12
FROZEN = "raw dump, frozen"
RESTORED = "raw restore"
SLEEP = "sleep 100000 &"


class Ground:
    """A home with two sessions, each an idle bash with a background job: `plain` has a sleep, `spun` has the spinner.

    `point` is a capture of `plain`, and the first of `captures` in the history.
    """

    raw: RawCriu

    def __init__(self, home: Home, sizes: Sizes) -> None:
        self.home = home
        self.captures = 300 if sizes.quick else 3000
        self.client = Client(home.path)
        self.plain = self.start("plain")
        self.plain.exec(SLEEP)
        self.point = self.plain.checkpoint("point", tier="live").capture
        fill_history(home, self.point, self.captures)
        self.spun = self.start("spun")
        self.spinner = Spinner(home, self.spun)

    def start(self, branch: str) -> Session:
        return self.client.start(branch, user=USER, env={"TERM": "xterm"})

    def pause_ms(self) -> float:
        """Return the pause of a checkpoint of `spun`, measured inside the session."""
        return self.spinner.gap_ms(lambda: take(self.spun))

    def raw_restore_ms(self) -> float:
        return self.raw.restore_ms("plain", self.point)

    def discard(self, *branches: str) -> None:
        """Discard the sessions of those branches that are live."""
        live = {facts.branch for facts in self.client.sessions()}.intersection(branches)
        with ThreadPoolExecutor(CROWD) as threads:
            list(threads.map(lambda branch: self.client.session(branch).stop(discard=True), live))


@contextlib.contextmanager
def open_ground(area: str, sizes: Sizes) -> Iterator[Ground | None]:
    """Yield the home with its sessions; None, after a message, if this machine has no CRIU."""
    why_not = missing("criu")
    if why_not:
        print(f"{area}: no figures without CRIU: {why_not}", file=sys.stderr)
        yield None
        return
    # The full sizes use a pool of the default size.
    with open_home("bench", None if sizes.quick else make_temp_root()) as home:
        ground = Ground(home, sizes)
        with RawCriu(home, ground.client.status().pid) as raw:
            ground.raw = raw
            yield ground


def take(session: Session) -> float:
    """Checkpoint the session with its processes. Return the pause in ms that the daemon reports."""
    return session.checkpoint("again", tier="live", force=True, anew=True).paused_ms
