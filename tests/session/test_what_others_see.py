"""A user of a home of root sees that sessions and captures of others exist, but not which programs ran in them."""

import re

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside
from tests.collecting import collecting
from tests.homes import Home
from tests.session.let_in import stop, succeeds

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "public-checkout")]

WORD = "quietword"
# Puts WORD into the name of a folder, a variable and a program, and into the programs' arguments.
RUNS = f"mkdir /srv/{WORD}; cd /srv/{WORD}; export {WORD}=1; sleep 1000 & cp /bin/sleep {WORD}; ./{WORD} 1000 &"


@pytest.fixture(scope="module")
def home(let_in: Home) -> Home:
    """A home with the live session `roots`, started from a capture of `began`, which has ended; and two checkpoints."""
    let_in.must("shell", "began", "-d", "--user", "root")
    inside(let_in, "began", RUNS)
    let_in.must("checkpoint", "live-cp", "-b", "began", "-m", "for root only")
    inside(let_in, "began", f"cat /srv/{WORD} & until pgrep -x {WORD}; do :; done; rm {WORD}")
    let_in.must("checkpoint", "again-cp", "-b", "began", "--tier", "respawn")
    let_in.must("shell", "roots", "-d", "--from", "again-cp", "--user", "root")
    let_in.must("stop", "--files", "began")
    return let_in


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
NEVER = ("ps in words", "op log", "branch", "du")  # these do not show WORD even to the owner


def test_others_see_sessions_but_not_which_programs_ran_in_them(home: Home, person: Person) -> None:
    with collecting() as row:
        for look, words in LOOKS.items():
            with row(look):
                own, others = home.must(*words).stdout, succeeds(person.can(home, *words))
                assert (WORD in own) == (look not in NEVER)
                assert WORD not in others
                assert re.search(r"sleep|bash", others) is None
                assert {"roots", "began", "live-cp", "again-cp"} & set(re.findall(r"[\w-]+", others)), others
    shown = succeeds(person.can(home, "show", "live-cp"))
    assert "for root only" not in shown
    assert "root" in shown


def test_a_user_sees_which_programs_ran_in_their_own_sessions(home: Home, person: Person) -> None:
    succeeds(person.can(home, "shell", "own", "-d"))
    succeeds(person.can(home, "exec", "-b", "own", "--", "sleep 1000 &"))
    succeeds(person.can(home, "checkpoint", "own-cp", "-b", "own", "--tier", "respawn"))
    assert "sleep 1000" in succeeds(person.can(home, "show", "own-cp"))
    stop(home, "own")


def test_a_session_of_a_user_shows_no_more_than_the_user_sees(home: Home, person: Person) -> None:
    """The branch was root's, so requests from inside can name its earlier captures."""
    home.must("shell", "given", "-d", "--from", "live-cp", "--user", "root")
    home.must("stop", "--files", "given")
    home.must("shell", "given", "-d", "--user", person.name)
    for words in ("log --json", "show live-cp --json", "ps --json"):
        done = home.must("exec", "-b", "given", "--", f"waypoint {words}")
        assert (WORD in done.stdout, "began" in done.stdout or words == "ps --json") == (False, True), done
    stop(home, "given")
