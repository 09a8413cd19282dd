"""What is attached to a capture is written to a path in a session before its processes go on, and nowhere else."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside
from tests.homes import Home
from tests.parcel.attachable import folder
from tests.waiting import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "public-checkout")]

__all__ = ["folder"]

COUNTER = (
    "import os\n"
    "count, file = 0, open('counted', 'w')\n"
    "while not os.path.exists('cache'):\n"
    "    count += 1\n"
    "    file.seek(0)\n"
    "    file.write('%09d' % count)\n"
    "    file.flush()\n"
    "open('came', 'w').write('%09d' % count)\n"
)


@pytest.fixture(scope="module")
def kept(shared: Home, person: Person, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home with the person's checkpoint `kept`: a live one, to which a trace is attached."""
    trace = tmp_path_factory.mktemp("trace") / "trace"
    trace.write_text("what was done\n")
    shared.must("shell", "-d", "main", "--user", person.name, "--cwd", "/srv")
    shared.must("run", "-b", "main", "--", "mkdir", "/tmp/own")
    inside(shared, "main", "mkdir -p ~/full/sub ~/link-to && touch ~/full/sub/x && ln -s /etc ~/link; sleep 1000 & n=1")
    shared.must("checkpoint", "kept", "-b", "main", "--tier", "live", "--attach", f"trace={trace}")
    yield shared
    shared.must("stop", "--all", "--discard")


@pytest.mark.parametrize("tier", ["live", "files"])
def test_a_copy_has_it_at_the_path(kept: Home, person: Person, tier: str) -> None:
    """In a new folder, and in place of a full one; as the user's; before a new shell's state is back, too."""
    at = f"{person.home}/new/er/trace"
    name = f"copy-{tier}"
    tiers = ("--tier", tier) if tier == "files" else ()
    kept.must("fork", "kept", name, *tiers, "--attach-at", f"trace={at}")
    said = inside(kept, name, f"cat {at}; stat -c '%U %a' {at} $(dirname {at}); ls -A $(dirname {at}); echo $n")
    assert said == f"what was done\n{person.name} 644\n{person.name} 755\ntrace\n1\n"
    kept.must("restore", "kept", "-b", name, *tiers, "--attach-at", f"trace={person.home}/full")
    assert inside(kept, name, "cat ~/full; echo >> ~/full; ls ~/new 2>&1 | wc -l") == "what was done\n1\n"
    kept.must("stop", name, "--discard")


def test_what_cannot_be_written_starts_nothing(kept: Home, person: Person) -> None:
    for word, code, said in (
        (f"nosuch={person.home}/x", 2, "it has trace\n  next: see what it has: waypoint layer list kept"),
        ("trace=srv/x", 2, "no plain absolute path\n  next: name one such as /srv/model"),
        ("trace=/srv/../x", 2, "no plain absolute path\n  next: name one such as /srv/model"),
        (f"trace={person.home}/link/x", 125, "Too many levels of symbolic links"),
        ("trace=/proc/x", 125, "No such file or directory"),
        ("trace=/dev/shm", 125, "Read-only file system"),
    ):
        done = kept.cli("fork", "kept", "bad", "--attach-at", word)
        assert (done.code, done.stdout) == (code, ""), done
        assert said in done.stderr
    assert kept.cli("show", "bad").code == 2
    assert not Path("/etc/x").exists()
    done = kept.cli("restore", "kept", "--only", "files", "--attach-at", "trace=/srv/x")
    assert done.code == 2
    assert "--only brings back no more than its aspect" in done.stderr
    before = inside(kept, "main", "echo $$")
    done = kept.cli("restore", "kept", "--attach-at", f"trace={person.home}/link/x")
    assert done.code == 125
    assert inside(kept, "main", "echo $$; rm ~/link") == before


def test_no_process_runs_before_it_is_there(kept: Home, person: Person, folder: Path) -> None:
    """A program that looks as fast as it can has not looked once more in the copy when it is there."""
    inside(kept, "main", f"mkdir ~/watch; (cd ~/watch && exec python3 -c {shlex.quote(COUNTER)}) & sleep 0")
    wait_until(lambda: inside(kept, "main", "cat ~/watch/counted 2>&1").isdecimal(), "it counts")
    kept.must("checkpoint", "watched", "-b", "main", "--tier", "live", "--attach", f"cache={folder}")
    kept.must("fork", "watched", "plain", "--tier", "files")
    kept.must("fork", "watched", "seen", "--attach-at", f"cache={person.home}/watch/cache")
    wait_until(lambda: inside(kept, "seen", "cat ~/watch/came 2>&1").isdecimal(), "it has seen it")
    counted = int(inside(kept, "plain", "cat ~/watch/counted"))
    assert int(inside(kept, "seen", "cat ~/watch/came")) - counted in (0, 1)
    assert "tool" in inside(kept, "seen", "ls ~/watch/cache/sub")


@pytest.mark.requires("btrfs", "simple-quotas")
def test_that_a_limit_of_its_own_is_reached_is_said(kept: Home, tmp_path: Path) -> None:
    """As a copy gets there, too: no room on the machine's disk would help."""
    (tmp_path / "large").write_bytes(os.urandom(17 << 20))
    own = "the session has reached its own limit of 16 MiB (--disk)\n  next:"
    kept.must("shell", "small", "-d", "--user", "root", "--disk", "16M")
    full = kept.cli("cp", str(tmp_path / "large"), "small:/srv/")
    assert full.code == 125
    more = "waypoint stop small && waypoint shell small -d --disk SIZE\n"
    assert f"{own} remove files in it, or start it with more: {more}" in full.stderr
    kept.must("checkpoint", "small-one", "-b", "small", "--tier", "files", "--attach", f"x={tmp_path}/large")
    full = kept.cli("restore", "small-one", "--new", "smaller", "--attach-at", "x=/srv/large")
    assert full.code == 125
    more = "waypoint shell NEW --from NAME -d --disk SIZE\n"
    assert f"{own} start one with more, and copy it there: {more}" in full.stderr
    kept.must("shell", "more", "--from", "small-one", "-d", "--disk", "100M")
    kept.must("cp", str(tmp_path / "large"), "more:/srv/")
    kept.must("stop", "small", "more", "--discard")
