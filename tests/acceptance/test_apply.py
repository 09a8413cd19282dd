"""`waypoint apply`: what a branch has changed comes onto the machine, and back by `waypoint undo`."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.acceptance.sessions import OF_THE_BASE, OWN_MOUNT, ground_of, inside, session
from tests.cli.conftest import daemon_pid
from tests.homes import Home
from tests.session.pauses import Pauses
from tests.upper.pictures import picture
from tests.waiting import PATIENCE_S, wait_until
from waypoint.branch.applying.apply_steps import ApplyStep
from waypoint.client.sdk import Client
from waypoint.linux.tasks import procfs
from waypoint.model.paths import spelled

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

WORK = (
    "echo theirs > edited; rm gone; mkdir -p new/deep; echo made > new/deep/file; chmod 4755 new/deep/file; "
    "chown 1234:5678 new; mv moved elsewhere; ln edited linked; ln -s /etc/passwd link; mkfifo pipe; chmod 700 folder; "
    "echo more >> folder/kept"
)


@pytest.fixture(params=[OF_THE_BASE, OWN_MOUNT])
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    with ground_of(request.param) as folder:
        _furnish(folder)
        yield folder


def _furnish(folder: Path) -> None:
    for path in ("edited", "gone", "folder/kept", "moved/a", "moved/b"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(path)


def _state(folder: Path) -> dict[bytes, Any]:
    """Without the times of the folder itself, in which others make files."""
    found = picture(folder)
    found.pop(b"")
    return found


def test_onto_the_machine_and_back(home: Home, place: Path) -> None:
    before = _state(place)
    with session(home, "root", "--cwd", str(place)) as branch:
        inside(home, branch, WORK)
        inside(home, branch, "mkdir -p /var/tmp/of-the-session; echo > /var/tmp/of-the-session/alone")
        planned = home.must("apply", branch, "--dry-run", "--json", "--", str(place)).json()
        assert (planned["applied"], planned["dry_run"], planned["operation"]) == (False, True, None)
        assert (planned["conflicts"], planned["setid"]) == ([], [f"{place}/new/deep/file"])
        assert _state(place) == before
        seen = inside(home, branch, f"cd {place}; find . -printf '%P %y %m %U %G %l\\n' | sort")
        done = home.must("apply", branch, "--", str(place))
        assert f"runs with the rights of its owner or group: {place}/new/deep/file" in done.stderr
        assert _listed(home, place) == seen
        assert not Path("/var/tmp/of-the-session").exists()
        assert list(place.rglob(".waypoint-*")) == []
        after = _state(place)
        again = home.must("apply", branch, "--dry-run", "--json", "--", f"{place}/new", f"{place}/edited").json()
        assert (again["files"], again["conflicts"]) == (1, []), "a file with two names is put there again"
        told = next(one for one in home.must("op", "log", "--json").json() if one["verb"] == "apply")
        assert told["undone"] is False
        assert "of the machine be as before" in told["undo"]
        assert home.must("du", "--json").json()["applied_bytes"] > 0
        _leave_beside(home, place)
        home.must("undo", str(told["number"]))
        assert _state(place) == before
        home.must("undo", str(home.must("op", "log", "-n", "1", "--json").json()[0]["number"]))
        assert _state(place) == after
        _change_and_take_back(home, place, str(told["number"]), before)
        number = str(home.must("op", "log", "-n", "1", "--json").json()[0]["number"])
        home.must("gc", "--keep-operations", "0")
        assert "older than what 'waypoint gc' has kept" in home.cli("undo", number).stderr
        assert list((home.path / "applied").iterdir()) == [home.path / "applied/lock"]


def _change_and_take_back(home: Home, place: Path, number: str, before: dict[bytes, Any]) -> None:
    """What somebody has changed since, and folders that are gone. Each step that is advised is followed."""
    os.utime(place / "new/deep/file")
    (place / "edited").write_text("by somebody")
    (place / "folder").rename(place / "folder-elsewhere")
    changed = _state(place)
    refused = home.cli("undo", number, "--force", "--json")
    assert (refused.code, refused.json()["error"]["code"]) == (6, "changed-since")
    assert f"{place}/folder/kept (its folder is not there any more" in refused.json()["error"]["said"]
    next_step = "see to these folders (move them back or make them, umount, chattr -i -a); then try again"
    assert refused.json()["error"]["next"] == next_step
    assert _state(place) == changed
    (place / "folder-elsewhere").rename(place / "folder")
    changed = _state(place)
    refused = home.cli("undo", number, "--json")
    assert f"{place}/edited" in refused.json()["error"]["said"]
    forced = f"waypoint undo {number} --force"
    next_step = f"move that away and try again; or have it replaced, which the undo keeps: {forced}"
    assert refused.json()["error"]["next"] == next_step
    assert _state(place) == changed
    done = home.must("undo", number, "--force")
    assert [line for line in done.stderr.splitlines() if "replaced" in line] == [
        f"changed since, and replaced: {place}/{name}" for name in ("edited", "linked")
    ]
    assert _state(place) == before
    back = done.stderr.rpartition("the way back: waypoint ")[2].split()
    home.must(*back)
    assert _state(place) == changed
    for name in ("edited", "linked", "folder"):  # the first two are the same file
        (place / name).rename(place / f"{name}-elsewhere")
    (place / "folder").mkdir()
    home.must("undo", number)
    for name in ("edited", "linked"):
        (place / f"{name}-elsewhere").unlink()
    shutil.rmtree(place / "folder-elsewhere")
    os.utime(place / "folder", ns=(1, before[b"folder"][3]))
    assert _state(place) == before


def _leave_beside(home: Home, place: Path) -> None:
    """As if there had been no room to write down that the change is settled."""
    (settled,) = home.path.glob("applied/*/settled")
    settled.unlink()
    beside = place / f".waypoint-{settled.parent.name}"
    beside.mkdir(0o700)
    (beside / settled.parent.name).touch()


def _listed(home: Home, place: Path) -> str:
    with session(home, "root", "--cwd", str(place)) as other:  # a new one sees the machine
        return inside(home, other, f"cd {place}; find . -printf '%P %y %m %U %G %l\\n' | sort")


def test_what_the_machine_has_changed_is_refused_with_a_list(home: Home) -> None:
    with ground_of(OF_THE_BASE) as place, _session_on(home, place) as branch:
        inside(home, branch, WORK)
        inside(home, branch, "echo theirs > many-0; echo theirs > many-1")
        check_names_that_a_terminal_would_act_on(home, branch, place)
        (place / "edited").write_text("ours")
        (place / "many-0").write_text("ours")
        before = _state(place)
        last = home.must("checkpoint", f"{branch}-last", "-b", branch, "--tier", "files", "--json").json()
        refused = home.cli("apply", branch, "--json", "--", str(place))
        assert refused.code == 6
        told = refused.json()
        assert (told["applied"], told["operation"], told["error"]["exit"]) == (False, None, 6)
        assert [line["path"] for line in told["conflicts"]] == [f"{place}/edited", f"{place}/many-0"]
        assert f"conflict: {place}/edited: it was changed on the machine since the branch began" in refused.stderr
        look, force_it = ["diff", branch, "--machine", "--patch"], ["apply", branch, "--force"]
        commands = [spelled(str(home.path), *words, "--", str(place)) for words in (look, force_it)]
        then = f"then have all of it replaced, which an undo brings back: {commands[1]}"
        assert told["error"]["next"] == f"look at what differs: {commands[0]}; {then}"
        assert _state(place) == before
        assert f"M  {place}/edited\n" in home.must(*look, "--", str(place)).stdout
        # What was done last is still what an undo takes back.
        assert home.must("show", branch, "--json").json()["capture"] == last["capture"]
        home.must("undo", "-b", branch)
        assert home.cli("show", f"{branch}-last").code == 2
        _replace_by_force(home, branch, place)
        assert _state(place) == before
        home.must("apply", branch, "--", f"{place}/new", f"{place}/gone")
        assert (place / "new/deep/file").read_text() == "made\n"
        (place / "edited").write_text("theirs\n")
        (place / "many-0").write_text("theirs\n")
        inside(home, branch, "rm linked")
        home.must("apply", branch, "--", str(place))
        # The branch may go on, and apply once more what it changes.
        inside(home, branch, "echo more >> new/deep/file; echo more >> many-1")
        found = Client(str(home.path)).history.apply(branch, str(place))
        assert (found.applied, found.conflicts) == (True, [])
        assert (place / "many-1").read_text() == "theirs\nmore\n"
        assert (place / "new/deep/file").read_text() == "made\nmore\n"
        home.must("stop", branch)
        found_again = home.must("apply", branch, "--json", "--", str(place)).json()
        assert (found_again["files"], found_again["applied"]) == (0, False)


def _replace_by_force(home: Home, branch: str, place: Path) -> None:
    """What only changed since is replaced, and comes back. What else is refused stays so."""
    changed = [f"{place}/{name}" for name in ("edited", "many-0")]
    (place / "folder").rename(place / "aside")
    refused = home.cli("apply", branch, "--force", "--json", "--", str(place))
    next_step = f"apply what has none: waypoint apply {branch} -- PATH...; or make these files alike on both sides"
    assert (refused.code, refused.json()["error"]["next"]) == (6, next_step)
    assert ([line["path"] for line in refused.json()["conflicts"]], refused.json()["fixed"]) == ([f"{place}/folder"], 1)
    (place / "aside").rename(place / "folder")
    changed.insert(1, f"{place}/folder")  # its attributes: a rename is a change, too
    planned = home.must("apply", branch, "--force", "--dry-run", "--", str(place))
    assert [line for line in planned.stderr.splitlines() if "changed since" in line] == [
        f"changed since, would be replaced: {path}" for path in changed
    ]
    assert (place / "edited").read_text() == "ours"
    done = home.must("apply", branch, "--force", "--", str(place))
    for path in changed:
        assert f"changed since, and replaced: {path}\n" in done.stderr
    assert (place / "edited").read_text() == "theirs\n"
    home.must(*done.stderr.rpartition("the way back: waypoint ")[2].split())


def check_names_that_a_terminal_would_act_on(home: Home, branch: str, place: Path) -> None:
    """They are quoted as in `diff`, in what is to be looked at before all."""
    inside(home, branch, r"cp /bin/true $'bad\e[2J\nnew  etc\a'; chmod 4755 bad*; echo > $'clash\e'")
    quoted = f'"{place}/bad\\033[2J\\nnew  etc\\007"'
    planned = home.must("apply", branch, "--dry-run", "--", str(place))
    assert f"new  {quoted}\n" in planned.stdout
    assert f"runs with the rights of its owner or group: {quoted}\n" in planned.stderr
    (place / "clash\x1b").write_text("ours")
    refused = home.cli("apply", branch, "--", f"{place}/clash\x1b")
    assert f'conflict: "{place}/clash\\033": it was changed' in refused.stderr
    assert "\x1b" not in planned.stdout + planned.stderr + refused.stdout + refused.stderr
    for path in (f"{place}/nosuch", f"{place}/new/nosuch", f"{place}/edited/nosuch", "/nosuch/x"):
        wrong = home.cli("apply", branch, "--dry-run", "--", f"{place}/edited", path)
        assert (wrong.code, wrong.stdout) == (2, "")
        assert (
            f"cannot apply {path}: there is nothing that could be applied, neither on the branch nor on the machine\n"
            in wrong.stderr
        )
        assert "next: name what 'waypoint diff' tells, absolute or from this folder\n" in wrong.stderr
    for path in (f"{place}/gone", f"{place}/elsewhere/a", f"{place}/folder/kept"):
        home.must("apply", branch, "--dry-run", "--", path)
    inside(home, branch, "rm -f bad* clash*")
    (place / "clash\x1b").unlink()


def _session_on(home: Home, place: Path) -> contextlib.AbstractContextManager[str]:
    _furnish(place)
    return session(home, "root", "--cwd", str(place))


def test_never_from_inside(home: Home) -> None:
    with session(home, "root") as branch:
        denied = home.cli("exec", "-b", branch, "--", "waypoint apply")
        assert denied.code == 2
        assert "apply" in denied.stdout


def _program_of(home: Home) -> int:
    """The one that changes the files."""
    pids = procfs.family(daemon_pid(home))
    (found,) = (pid for pid in pids if any("apply_program.py" in word for word in procfs.command_line(pid)))
    return found


class Killed(NamedTuple):
    """Who is killed at which step; how the command exits then, and what it says; whether the machine is changed."""

    who: str
    step: ApplyStep
    code: int
    said: str
    is_done: bool


_GONE = "the daemon closed the connection before it had answered"
KILLED = [
    Killed("daemon", ApplyStep.EXCHANGED, 125, _GONE, is_done=False),
    Killed("daemon", ApplyStep.FINISHED, 125, _GONE, is_done=True),
    Killed("program", ApplyStep.STAGED, 125, "it has ended: status -9\n  next: try again\n", is_done=False),
    # What is in the log is done, whatever becomes of the program that puts the rest in order.
    Killed("program", ApplyStep.FINISHED, 0, "the rights of its owner or group: ", is_done=True),
    Killed("client", ApplyStep.EXCHANGED, -signal.SIGKILL, "", is_done=True),
]


def test_killed_while_it_is_under_way(tmp_path: Path) -> None:
    """All of it is done, or nothing, and the operation log says which."""
    pauses = Pauses(tmp_path)
    with ground_of(OF_THE_BASE) as place, pauses.open_home("applies") as home:
        _furnish(place)
        before = _state(place)
        with session(home, "root", "--cwd", str(place)) as branch:
            inside(home, branch, WORK)
            for case in KILLED:
                with pauses.armed(case.step) as armed, home.background("apply", branch, "--", str(place)) as asked:
                    with open(os.pidfd_open(asked.pid), "rb") as ended:
                        assert armed.wait(ended.fileno()) == case.step, asked.communicate()
                    if case.who == "client":
                        asked.kill()
                        armed.go_on()
                    else:
                        os.kill(daemon_pid(home) if case.who == "daemon" else _program_of(home), signal.SIGKILL)
                    _, said = asked.communicate(timeout=PATIENCE_S)
                    assert (asked.returncode, case.said in said.decode()) == (case.code, True), (case, said)
                wait_until(lambda: not list(place.rglob(".waypoint-*")), "it is seen to", PATIENCE_S)
                last = home.must("op", "log", "-n", "1", "--json").json()[0]
                assert (last["verb"] == "apply") == case.is_done, case
                assert (place / "edited").read_text() == ("theirs\n" if case.is_done else "edited")
                if case.is_done:
                    home.must("undo", str(last["number"]))
                assert _state(place) == before, case
