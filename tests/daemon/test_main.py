"""What the daemon's program loads before it serves. Counted, not timed: a busy machine must not fail a test."""

import subprocess
import sys

from tests.places import ROOT

CODE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from waypoint.model.packages import begin
begin("h11", "msgspec")
from waypoint.daemon import lifetime, main
def show(*_):
    print(*(name for name, module in sys.modules.items() if module and type(module).__name__ != "_StandIn"))
lifetime.run = show
main.main()
"""

# Of the standard library: each takes 1 to 10 ms. Of Waypoint: what some requests need, or only other programs.
NOT_LOADED = {
    *("json", "locale", "lzma", "shutil", "ssl", "textwrap", "tomllib"),
    "waypoint.branch.undo",
    "waypoint.service.activity",
    "waypoint.service.attached.layer_calls",
    "waypoint.service.carrying.file_streams",
    "waypoint.service.comparing.diffs",
    "waypoint.service.durable.applying",
    "waypoint.service.durable.receiving",
    "waypoint.service.durable.sending",
    "waypoint.service.history",
    "waypoint.service.inside.serving",
    "waypoint.service.profiles",
}
MOST_MODULES = 575
"""Each further one takes about 0.4 ms, which every user waits for."""


def test_it_loads_only_what_sessions_need() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", "-c", CODE], check=True, capture_output=True)
    loaded = done.stdout.decode().split()
    assert {"h11", "msgspec", "waypoint.session.checkpoint", "waypoint.session.restore"} <= set(loaded)
    assert not NOT_LOADED & set(loaded)
    assert len(loaded) < MOST_MODULES


REST = """
import asyncio
from waypoint.daemon import late, lifetime
from waypoint.daemon.http.routes import ROUTES
late.calling("service.inside.serving:serve")
lifetime.LOAD_REST_S = 0.0
class Daemon:
    _routes = ROUTES
asyncio.run(lifetime._Daemon._load_rest(Daemon()))
print(*sys.modules)
"""


def test_what_nobody_has_asked_for_is_loaded_before_another_version_may_take_its_place() -> None:
    code = CODE.partition("from waypoint.daemon import lifetime")[0] + REST
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True)
    services = {name for name in NOT_LOADED if name.startswith("waypoint.service")}
    assert services <= set(done.stdout.decode().split())
