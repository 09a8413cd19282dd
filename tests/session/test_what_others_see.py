"""Of another user's sessions and captures, who is let in sees that they are there, and nothing of what ran in them."""

import re
import shutil
from collections.abc import Iterator

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import OF_THE_BASE, ground_of, inside
from tests.homes import Home, open_home
from tests.session.let_in import stop, succeeds
from tests.waiting import until_runs

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "public-checkout")]

WORD = "quietword"
# In a folder, a variable's name, the arguments of a job, and those of what cannot be started again.
RUNS = f"mkdir /srv/{WORD}; cd /srv/{WORD}; export {WORD}=1; sleep 1000 & cp /bin/sleep {WORD}; ./{WORD} 1000 &"


@pytest.fixture(scope="module")
def home(person: Person) -> Iterator[Home]:
    """Its session `roots` went on with a capture of `began`, which ended; `live-cp` and `again-cp` are captures."""
    with open_home("seen") as made:
        made.must("setup", "--user", person.name)
        made.must("shell", "began", "-d", "--user", "root")
        inside(made, "began", RUNS)
        made.must("checkpoint", "live-cp", "-b", "began", "-m", "for all")
        inside(made, "began", f"cat /srv/{WORD} & until pgrep -x {WORD}; do :; done; rm {WORD}")
        made.must("checkpoint", "again-cp", "-b", "began", "--tier", "respawn")
        made.must("shell", "roots", "-d", "--from", "again-cp", "--user", "root")
        made.must("stop", "began")
        yield made


LOOKS = {
    "show": ("show", "live-cp", "--json"),
    "show of what is started again": ("show", "again-cp", "--json"),
    "show of a session": ("show", "roots", "--json"),
    "show in words": ("show", "again-cp"),
    "log": ("log", "--all", "--json"),
    "log of a branch": ("log", "roots", "--json"),
    "ps": ("ps", "--json"),
    "ps of all": ("ps", "--all", "--json"),
    "ps in words": ("ps", "--all"),
    "op log": ("op", "log", "--json"),
    "branch": ("branch", "--json"),
    "du": ("du", "--json"),
}
NEVER = ("ps in words", "op log", "branch", "du")  # not even the owner sees it there


@pytest.mark.parametrize("look", LOOKS)
def test_others_see_nothing_of_what_ran(home: Home, person: Person, look: str) -> None:
    own, others = home.must(*LOOKS[look]).stdout, succeeds(person.can(home, *LOOKS[look]))
    assert (WORD in own) == (look not in NEVER)
    assert WORD not in others
    assert re.search(r"sleep|bash", others) is None
    assert {"roots", "began", "live-cp", "again-cp"} & set(re.findall(r"[\w-]+", others)), others


def test_they_see_what_is_for_all(home: Home, person: Person) -> None:
    shown = person.can(home, "show", "live-cp")
    assert "for all" in succeeds(shown)
    assert "root" in shown.stdout


def test_what_is_ones_own_is_seen(home: Home, person: Person) -> None:
    succeeds(person.can(home, "shell", "own", "-d"))
    succeeds(person.can(home, "exec", "-b", "own", "--", f"sleep 1000 & {until_runs('sleep 1000')}"))
    succeeds(person.can(home, "checkpoint", "own-cp", "-b", "own", "--tier", "respawn"))
    assert "sleep 1000" in succeeds(person.can(home, "show", "own-cp"))
    stop(home, "own")


def test_a_user_learns_of_no_program_that_only_root_sees(home: Home, person: Person) -> None:
    with ground_of(OF_THE_BASE) as ground:
        for name in ("open", "closed"):
            (ground / name).mkdir()
            shutil.copy("/bin/bash", ground / name / "bash")
        (ground / "closed").chmod(0o700)
        for there in (True, False):
            done = person.can(home, "shell", "asks", "-d", "--shell", f"{ground}/closed/{'bash' if there else 'none'}")
            assert (done.returncode, "there is no such program" in done.stderr) == (2, True), done
        succeeds(person.can(home, "shell", "asks", "-d", "--shell", f"{ground}/open/bash"))
        stop(home, "asks")


def test_from_within_a_users_session_no_more_is_seen(home: Home, person: Person) -> None:
    """The branch was root's; its history can be named from within."""
    home.must("shell", "given", "-d", "--from", "live-cp", "--user", "root")
    home.must("stop", "given")
    home.must("shell", "given", "-d", "--user", person.name)
    for words in ("log --json", "show live-cp --json", "ps --json"):
        done = home.must("exec", "-b", "given", "--", f"waypoint {words}")
        assert (WORD in done.stdout, "began" in done.stdout or words == "ps --json") == (False, True), done
    stop(home, "given")
