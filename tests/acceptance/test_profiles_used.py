"""What the workload profiles say is what Waypoint does: ours, and those that a home's owner has added."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.moments import new_name, started
from tests.acceptance.seat import Seat
from tests.acceptance.sessions import inside, session
from tests.homes import Home
from tests.waiting import wait_until
from waypoint.client import Client, Session
from waypoint.model.errors import CannotCapture

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

DELETED = (
    "import os, time; f = open('/srv/deleted', 'wb')\n"
    "f.write(bytes({mib} << 20)); f.flush(); os.unlink('/srv/deleted');"
    " open('/srv/on', 'w').write('1'); time.sleep(1000)"
)
FAKE = '#!/bin/sh\nprintf "%s\\n" "${0##*/} $*" >>/srv/ran\nsleep 1000\n'
# What is typed, whether it is run again without being asked for, and how; "": not at all.
TYPED = {
    "claude --model opus 'do it'": (True, "claude --continue --model opus"),
    "claude -p 'do it'": (False, "claude -p do it"),
    "codex 'do it'": (True, "codex resume --last"),
    "vim notes": (True, "vim -r notes"),
    "wget http://host/x": (False, "wget -c http://host/x"),
    "apt-get install x": (False, ""),
}


@pytest.fixture
def profiles(home: Home) -> Iterator[Callable[[str, str], Path]]:
    """Puts a profile into the home's folder, until the test has ended."""
    folder = home.path / "profiles"
    put: list[Path] = []

    def write(name: str, text: str) -> Path:
        folder.mkdir(mode=0o755, exist_ok=True)
        path = folder / f"{name}.toml"
        path.write_text(text)
        path.chmod(0o644)
        put.append(path)
        return path

    yield write
    for path in put:
        path.unlink(missing_ok=True)


def install(live: Session, *names: str) -> None:
    """Programs that note how they are called, in place of those of these names."""
    for name in names:
        path = f"/usr/local/bin/{name}"
        assert live.run("sh", "-c", f"cat >{path}; chmod 755 {path}", stdin=FAKE.encode()).exit == 0


LOW = """
reason = "a home that keeps small files only"
[match]
programs = ["*"]
[criu]
deleted_files_mib = 10
"""


@pytest.mark.parametrize(
    ("program", "mib", "base", "tier"),
    [
        ("python3", 80, "", "live"),
        ("python3", 8, LOW, "live"),
        ("python3", 80, LOW, "respawn"),
        ("postgres", 80, LOW, "live"),
        ("postgres: worker", 80, LOW, "live"),
    ],
)
def test_a_deleted_file_is_kept_as_far_as_its_program_s_profile_says(
    home: Home, profiles: Callable[[str, str], Path], program: str, mib: int, base: str, tier: str
) -> None:
    if base:
        profiles("base", base)
    with started(home, "root") as live:
        live.exec(
            f"""(exec -a '{program}' python3 -c "{DELETED.format(mib=mib)}") & until [ -s /srv/on ]; do :; done"""
        )
        taken = live.checkpoint(new_name(live))
        assert taken.tier == "live"
        said = "".join(taken.degraded)
        assert ("it is ended in copies" in said, "too large" in said) == (tier != "live", tier != "live")


@pytest.mark.parametrize("typed", TYPED)
def test_what_was_in_the_foreground_is_started_as_its_profile_says(
    home: Home, seat: Callable[..., Seat], typed: str
) -> None:
    unasked, again = TYPED[typed]
    with session(home, "root") as branch:
        install(Client(home.path).session(branch), typed.split()[0])
        taken = seat()
        taken.type(f"waypoint attach {branch}\r".encode()).prompt()
        taken.type(f"{typed}\r".encode())
        wait_until(lambda: home.cli("run", "-b", branch, "--", "test", "-s", "/srv/ran").code == 0, "it runs")
        home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
        inside_of = ["run", "-b", branch, "--"]
        home.must(*inside_of, "rm", "/srv/ran")
        done = home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes")
        ran = 1 + unasked
        if not again:
            assert "lost: " in done.stderr
            assert "an installation that was broken off is not begun once more" in done.stderr
        else:
            assert ("started again: " in done.stderr, "for Enter to run: " in done.stderr) == (unasked, not unasked)
            wait_until(lambda: home.must(*inside_of, "cat", "/srv/ran").stdout.count("\n") == ran, "it was started")
        said = home.must(*inside_of, "cat", "/srv/ran").stdout.splitlines()
        assert len(said) == ran
        if again and not unasked:
            taken.type(b"\r")
            wait_until(lambda: home.must(*inside_of, "cat", "/srv/ran").stdout.count("\n") == 2, "it runs at Enter")
            said = home.must(*inside_of, "cat", "/srv/ran").stdout.splitlines()
        assert said[1:] == ([again] if again else [])


def test_what_helps_is_said_of_the_program_itself(home: Home) -> None:
    """Not what helps with any program that CRIU refuses for this: so another name is the control."""
    helps = {"chromium": "--no-sandbox", "own": "or start it without its sandbox"}
    with started(home, "root", allow=["userns"]) as live:  # type: ignore[arg-type]  # a list, which it hands on
        for name, said in helps.items():
            live.exec(f"cp $(command -v sleep) /usr/local/bin/{name}")
            live.exec(f"unshare -Ur {name} 1000 & until pgrep -fx '{name} 1000'; do :; done")
            (found,) = [one for one in live.survey() if one.tier != "live"]
            assert (found.why, said in found.remedy) == ("it is in a user namespace of its own", True)
            with pytest.raises(CannotCapture) as refused:
                live.checkpoint(new_name(live), tier="live")
            assert said in refused.value.next_step
            inner = live.run("pgrep", "-xo", name).stdout.decode().strip()
            assert f"{name} (pid {inner}) is in a user namespace of its own" in str(refused.value)
            live.exec("kill %%; wait")


def test_what_a_copy_lacks_is_said_by_the_survey_and_by_the_capture(home: Home) -> None:
    with started(home, "root") as live:
        live.exec("cp $(command -v sleep) /usr/local/bin/nano; nano 1000 & until pgrep -x nano; do :; done")
        taken = live.checkpoint(new_name(live))
        assert taken.tier == "live"
        assert [line.partition(": in a copy it asks")[0] for line in taken.degraded] == ["nano"]
        (found,) = [one for one in live.survey() if one.profile == "nano"]
        assert (found.tier, found.why.startswith("in a copy it asks"), found.remedy) == ("live", True, "")
        assert {one.profile for one in live.survey()} == {"shell", "nano"}


OWN = """
reason = "it is to be told"
before = ["sh", "-c", "echo $WAYPOINT_HOOK $WAYPOINT_PIDS >>/srv/told"]
after = ["sh", "-c", "echo $WAYPOINT_HOOK $WAYPOINT_PIDS >>/srv/told; echo later >&2; exit 3"]
[match]
programs = ["mine"]
[env]
OF_MINE = "yes"
"""


def test_a_profile_of_the_home_counts_from_the_next_session_on(
    home: Home, profiles: Callable[[str, str], Path]
) -> None:
    with started(home, "root") as before:
        path = profiles("mine", OWN)
        with started(home, "root") as live:
            assert before.exec("echo [$OF_MINE]").output == b"[]\n"
            assert live.exec("echo [$OF_MINE]").output == b"[yes]\n"
            name = new_name(live)
            assert live.checkpoint(name).degraded == []
            assert live.exec("ls /srv/told").exit == 2, "no process is of the profile"
            live.exec("cp $(command -v sleep) /usr/local/bin/mine; mine 1000 & mine 1001 &")
            live.exec("until [ $(pgrep -cx mine) = 2 ]; do :; done")
            live.checkpoint(name, force=True)
            pids = live.exec("jobs -p").output.decode().split()
            (copy,) = Client(home.path).fork(name, f"{live.branch}-1")
            told = f"pre-checkpoint {pids[0]} {pids[1]}"
            assert copy.exec("cat /srv/told").output.decode().splitlines() == [
                told,
                told.replace("pre-checkpoint", "post-restore"),
            ]
            assert copy.facts.degraded == ["the post-restore of the profile mine ended with 3: later"]
            path.chmod(0o666)
            live.exec("rm /srv/told")
            live.checkpoint(name, force=True)
            assert live.exec("ls /srv/told").exit == 2, "it counts though everybody may write to it"


def test_what_lies_inside_of_a_session_is_no_profile(home: Home) -> None:
    with started(home, "root") as live:
        place = f"{home.path}/profiles"
        live.run("sh", "-c", f"mkdir -p {place}; cat >{place}/mine.toml", stdin=OWN.encode())
        live.exec(f"WAYPOINT_HOME={home.path}; cp $(command -v sleep) /usr/local/bin/mine; mine 1000 &")
        live.exec("until pgrep -x mine; do :; done")
        live.checkpoint(new_name(live))
        assert live.exec("ls /srv/told").exit == 2
        assert "mine" not in {one.profile for one in live.survey()}


def test_another_session_is_started_while_a_profile_is_wrong(home: Home, profiles: Callable[[str, str], Path]) -> None:
    profiles("wrong", OWN + "unknown = 1\n")
    with session(home, "root") as branch:
        assert inside(home, branch, "echo [$OF_MINE]") == "[]\n"
    assert "wrong.toml" in home.must("daemon", "logs").stdout
