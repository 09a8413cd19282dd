"""Nothing of a router is left, whoever is killed while it is made: no process, no network namespace."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import leaks
from tests.acceptance.outside import Outside, open_outside
from tests.homes import open_home
from tests.places import ROOT, home_id, make_temp_root
from tests.processes_now import processes, read
from tests.session.ledger import group_of
from tests.waiting import wait_until
from waypoint.egress import router
from waypoint.egress.router import Site
from waypoint.launch.ground.places import remove_group
from waypoint.linux.net import netns
from waypoint.linux.tasks import cgroups

pytestmark = [pytest.mark.privileged]

OWNER = 2_070_020_095
_MAKE = """
import os, signal, sys, threading, time
from pathlib import Path
sys.path[:0] = [{root!r}]
from waypoint.egress import router
from waypoint.linux.tasks import cgroups
site = router.Site(Path({runtime!r}), {groups!r}, {owner}, None)
lines, members = {lines}, {members}
def end():
    os.kill(os.getpid(), signal.SIGKILL)
def trace(frame, event, _):
    global lines
    if frame.f_code is not router.make.__code__:
        return None
    lines -= event == "line"
    return end() if lines == 0 else trace
def watch():
    while len(cgroups.members(site.groups)) < members:
        time.sleep(0.0005)
    end()
if members:
    threading.Thread(target=watch, daemon=True).start()
sys.settrace(trace)
made = router.make(site, [])
sys.settrace(None)
made.close()
"""


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with open_outside(tmp_path_factory.mktemp("outside")) as made:
        yield made


@pytest.fixture
def site() -> Iterator[Site]:
    """Where a home's router would be, for a home that is this test. It lies where other workers look for homes, and has
    what they know one by: no supervisor names it.
    """
    with tempfile.TemporaryDirectory(prefix=f"site-{os.getpid()}-", dir=make_temp_root()) as home:
        for name in ("config.json", "names.db"):
            Path(home, name).write_text("{}")
        runtime = Path(home, home_id(Path(home)))
        runtime.mkdir()
        group = f"{cgroups.find_hierarchies().unified}/waypoint/{runtime.name}"
        cgroups.create(group)
        yield Site(runtime, f"{group}/routers", OWNER, None)
        router.end(Site(runtime, f"{group}/routers", OWNER, None))
        remove_group(group)


def make_killed(outside: Outside, site: Site, *, lines: int = -1, members: int = 0) -> bool:
    """Have a process make a router that is killed before line `lines` of the work, or when `members` processes are at
    it. Returns whether it was killed.
    """
    fill = {"root": str(ROOT), "runtime": str(site.runtime), "groups": site.groups, "owner": site.owner}
    code = _MAKE.format(**fill, lines=lines, members=members)
    done = outside.on_host(sys.executable, "-c", code)
    assert done.stderr == ""
    return done.returncode == -signal.SIGKILL


def of_home(name: str) -> list[int]:
    """The pastas of the home with the id `name`, in whatever group."""
    found = []
    for one in processes():
        try:
            words = read(f"{one.folder}/cmdline").replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if leaks.ROUTER.match(words) and name in words:
            found.append(one.pid)
    return found


def check_next(site: Site) -> None:
    """What the next daemon does with what it finds: there is one router, which has its rules, or none."""
    router.sweep(site)
    found = router.find(site)
    if found is None:
        assert cgroups.members(site.groups) == []
    else:
        try:
            assert "chain forward" in netns.work_within(found._namespace, lambda: router._nft(["list", "ruleset"]))
            assert cgroups.members(site.groups) == of_home(site.runtime.name)
        finally:
            found.close()
    assert len(of_home(site.runtime.name)) == (found is not None)


def test_a_router_that_is_made_is_found_and_ended(outside: Outside, site: Site) -> None:
    assert not make_killed(outside, site)
    (pasta,) = of_home(site.runtime.name)
    check_next(site)
    assert of_home(site.runtime.name) == [pasta]
    router.end(site)
    assert of_home(site.runtime.name) == []
    assert not Path(site.groups).exists()


def test_a_maker_that_is_killed_at_any_step_leaves_no_router_without_rules(outside: Outside, site: Site) -> None:
    steps = 1
    while make_killed(outside, site, lines=steps):
        check_next(site)
        router.end(site)
        steps += 1
    assert steps > 8
    router.end(site)


@pytest.mark.parametrize("members", [1, 2, 3])
def test_what_its_programs_still_do_then_ends(outside: Outside, site: Site, members: int) -> None:
    assert make_killed(outside, site, members=members)
    check_next(site)
    assert not make_killed(outside, site)  # as the next daemon does, at once
    check_next(site)
    router.end(site)
    assert of_home(site.runtime.name) == []


def test_a_program_of_a_killed_maker_that_begins_late_gets_nowhere(outside: Outside, site: Site) -> None:
    """The next daemon has looked before it was in its group."""
    argv = [f"{site.groups}/aaaa", site.runtime.name, str(OWNER), "-1"]
    cgroups.create(site.groups)
    done = outside.on_host(sys.executable, "-c", f"import sys; sys.path[:0] = [{str(ROOT)!r}]; {_run(argv)}")
    assert (done.returncode, "No such file" in done.stderr, done.stdout) == (1, True, "")
    assert of_home(site.runtime.name) == []


def _run(argv: list[str]) -> str:
    return f"sys.argv = ['pasta', *{argv!r}]; import runpy; runpy.run_module('waypoint.egress.pasta', None, '__main__')"


def test_a_router_that_cannot_be_noted_is_ended(outside: Outside, site: Site) -> None:
    """As with a full disk, or a runtime folder that somebody has removed."""
    site.runtime.rmdir()
    code = _MAKE.format(root=str(ROOT), runtime=str(site.runtime), groups=site.groups, owner=OWNER, lines=-1, members=0)
    done = outside.on_host(sys.executable, "-c", code)
    assert "FileNotFoundError" in done.stderr
    assert of_home(site.runtime.name) == []
    assert not Path(site.groups).exists()


def test_a_pasta_that_is_left_is_found_by_the_check_of_the_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever group it is: a program that only has its name and its words here."""
    monkeypatch.setattr(leaks, "SETTLE_S", 0.1)
    before = leaks.take_stock()
    words = ["pasta", "-c", "read line", "--pid", "/tmp/waypoint-0123456789abcdef.pid", "end"]
    code = "import os, sys; os.fork() or (os.setsid(), os.fork() or os.execv('/bin/sh', sys.argv[1:]), os._exit(0))"
    gate, opener = os.pipe()
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code, *words], stdin=gate):
        os.close(gate)
    wait_until(lambda: bool(of_home("0123456789abcdef")), "it runs")
    (_left,) = [one for one in leaks.wait_new(before, tmp_path) if "pasta" in one.text]
    os.close(opener)


def network_of(pasta: int) -> str:
    held = netns.open_held_by(pasta)
    try:
        return os.readlink(f"/proc/self/fd/{held}")
    finally:
        os.close(held)


def holders(network: str) -> list[str]:
    """Who is in the namespace, or holds it open."""
    found = []
    for one in processes():
        try:
            links = [f"{one.folder}/ns/net", *(f"{one.folder}/fd/{name}" for name in os.listdir(f"{one.folder}/fd"))]
            found += [link for link in links if os.path.lexists(link) and os.readlink(link) == network]
        except OSError:  # it has ended
            continue
    return found


def test_a_home_whose_daemon_was_killed_at_it_leaves_none(outside: Outside) -> None:
    with open_home("left-router") as home:
        there = outside.moved(home)
        there.must("shell", "a", "-d", "--net", "none")
        routers = str(group_of(home) / "routers")
        for members in (1, 2):
            daemon = int(there.must("daemon", "status", "--json").json()["pid"])
            with there.background("shell", "b", "-d") as starting:
                wait_until(
                    lambda most=members: len(cgroups.members(routers)) >= most, "a router is being made", brief=True
                )
                os.kill(daemon, signal.SIGKILL)
                starting.wait()
            if any(one["branch"] == "b" for one in there.must("ps", "--json").json()):
                there.must("stop", "b", "--discard")
            wait_until(lambda: len(of_home(home.id)) <= 1, "one router at most is there")
            there.must("daemon", "stop")
            wait_until(lambda: not of_home(home.id), "no session needs one")
            there.must("exec", "-b", "a", "--", "true")
        there.must("shell", "c", "-d")
        there.must("run", "-b", "c", "--", "true")
        wait_until(lambda: len(of_home(home.id)) == 1, "one router leads out")
        (pasta,) = of_home(home.id)
        network = network_of(pasta)
        assert len(holders(network)) > 1  # pasta's and the daemon's
    assert of_home(home.id) == []
    wait_until(lambda: not holders(network), "nobody has the router's network any more")
