"""The launcher's process: what each of its forks pays for."""

import subprocess
import sys

from tests.places import ROOT

IMPORTS = """
import sys
sys.path[:0] = %r
import waypoint.launch.launcher
print(*sys.modules)
"""


def test_it_has_no_module_that_works_in_every_forked_child() -> None:
    """threading, logging and random register something with os.register_at_fork."""
    paths = [str(ROOT), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", IMPORTS % paths], check=True, capture_output=True)
    found = set(done.stdout.decode().split())
    assert "msgspec" in found
    assert not found & {"threading", "logging", "random", "concurrent.futures", "subprocess"}
