"""`waypoint base`, and sessions on pinned bases: their files do not change when the machine does."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.people import new_person
from tests.acceptance.sessions import facts, inside, refused
from tests.acceptance.small_base import make_base
from tests.homes import Home, open_home

pytestmark = pytest.mark.privileged


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system that the tests change."""
    place = tmp_path_factory.mktemp("pinned")
    place.chmod(0o755)
    made = make_base(place / "root")
    os.link(made / "etc/marker", made / "etc/other-name")
    (made / "bin/wc").chmod(0o4755)
    os.mknod(made / "etc/null", 0o20666, os.makedev(1, 3))
    return made


@pytest.fixture(scope="module")
def small(home: Home, folder: Path) -> Iterator[dict[str, Any]]:
    """The base `small` of that folder, which has changed since."""
    made = home.must("base", "create", "small", "--from", str(folder), "--json").json()
    again = home.must("base", "create", "again", "--from", str(folder), "--json").json()
    assert [one["code"] for one in made["left_out"]] == ["devices-left-out"]
    assert again["id"] == made["id"]
    (folder / "etc/marker").write_text("changed on the machine\n")
    (folder / "bin/wc").unlink()
    (folder / "etc/new").touch()
    yield made
    assert home.must("base", "list", "--json").json()


_LOOK = "cat /etc/marker; stat -c '%h %u' /etc/marker; stat -c %a /bin/wc; ls -d /etc/null /etc/new /home/* 2>/dev/null"
_AS_MADE = "the small base\n2 0\n4755\n/home/tester\n"


def test_a_session_a_checkpoint_and_a_fork_keep_the_base(home: Home, small: dict[str, Any]) -> None:
    home.must("shell", "one", "-d", "--base", "small", "--user", "root")
    assert inside(home, "one", f"{_LOOK} || :") == _AS_MADE
    inside(home, "one", "echo mine >/etc/marker; rm /bin/mv; sleep 1000 &")
    home.must("checkpoint", "state", "-b", "one")
    changed = {one["name"] for one in home.must("diff", "one", "--json").json()["files"]}
    assert changed == {"/etc/marker", "/bin/mv"}
    home.must("fork", "state", "two")
    assert inside(home, "two", "cat /etc/marker; jobs").splitlines()[0] == "mine"
    home.must("stop", "two", "--discard")
    home.must("daemon", "stop")
    assert inside(home, "one", "cat /etc/other-name; jobs | wc -l") == "the small base\n1\n"
    home.must("restore", "state", "-b", "one")
    assert inside(home, "one", "cat /etc/marker /etc/other-name") == "mine\nthe small base\n"
    assert (home.must("base", "show", "small", "--json").json()["sessions"]) == ["one"]
    below = {"kind": "pinned", "name": "small", "id": small["id"]}
    assert (facts(home, "one")["base"], home.must("show", "state", "--json").json()["base"]) == (below, below)
    assert f"small (pinned, {small['id'][:12]})" in home.must("doctor", "one").stdout
    said = home.cli("apply", "one", "--yes")
    assert (said.code, "pinned base" in said.stderr) == (2, True)
    home.must("stop", "one")


@pytest.mark.soak(part="matrix")
def test_a_base_that_is_only_in_the_store_is_laid_out_again(home: Home, small: dict[str, Any]) -> None:
    home.must("gc", "--hot-budget", "1")
    assert home.must("base", "show", "small", "--json").json()["on_disk"] is False
    home.must("shell", "stored", "-d", "--base", "again", "--user", "tester")
    assert inside(home, "stored", f"id -un; {_LOOK} || :") == f"tester\n{_AS_MADE}"
    home.must("gc", "--hot-budget", "1")
    assert home.must("base", "show", "small", "--json").json()["on_disk"] is True
    home.must("stop", "stored", "--discard")


@pytest.mark.soak(part="matrix")
def test_a_gc_removes_a_base_that_nothing_uses(folder: Path) -> None:
    with open_home("gc") as home:
        made = home.must("base", "create", "unused", "--from", str(folder), "--json").json()
        tree = home.path / "store/images" / made["image"]
        home.must("shell", "user", "-d", "--base", "unused", "--user", "root")
        home.must("base", "rm", "unused")
        home.must("gc", "--keep-operations", "0s")
        assert tree.exists()
        home.must("stop", "user", "--files")
        home.must("gc", "--keep-operations", "0s")
        home.must("shell", "user", "-d")
        assert inside(home, "user", "ls -d /etc/other-name") == "/etc/other-name\n"
        home.must("stop", "user", "--discard")
        home.must("branch", "delete", "user")
        home.must("gc", "--keep-operations", "0s")
        assert not tree.exists()
        assert home.must("base", "create", "unused", "--from", str(folder), "--json").json()["id"] == made["id"]
        home.must("shell", "user", "-d", "--base", "unused", "--user", "root")
        assert inside(home, "user", "ls -d /etc/other-name") == "/etc/other-name\n"
        home.must("stop", "user", "--discard")


@pytest.mark.soak(part="matrix")
def test_a_user_of_the_home_may_use_a_base_and_not_make_one(folder: Path) -> None:
    with open_home("users") as home, new_person("base", "/bin/bash") as ann:
        home.must("setup", "--user", ann.name)
        home.must("base", "create", "shared", "--from", str(folder))
        assert ann.can(home, "base", "create", "own", "--from", str(ann.home)).returncode == 3
        assert ann.can(home, "base", "rm", "shared").returncode == 3
        home.must("shell", "for-ann", "-d", "--base", "shared", env={"SUDO_USER": ann.name, "SUDO_UID": str(ann.uid)})
        assert facts(home, "for-ann")["user"] == ann.name
        home.must("stop", "for-ann", "--discard")
        assert ann.can(home, "shell", "anns", "-d", "--base", "shared").returncode == 0
        assert facts(home, "anns")["user"] == ann.name
        said = ann.can(home, "exec", "-b", "anns", "--", "id -u; id -G; ls /bin/bash")
        assert said.stdout == f"{ann.uid}\n{ann.gid}\n/bin/bash\n"
        home.must("stop", "anns", "--discard")


def test_names_of_bases(home: Home, small: dict[str, Any], folder: Path) -> None:
    taken = home.cli("base", "create", "small", "--from", str(folder))
    assert (taken.code, "--force" in taken.stderr) == (4, True)
    home.must("base", "create", "moving", "--from", str(folder))
    replaced = home.must("base", "create", "moving", "--from", str(folder / "etc"), "--force", "--json").json()
    found = {one["name"]: one for one in home.must("base", "list", "--json").json()}
    assert (found["moving"]["id"], found["moving"]["source"]) == (replaced["id"], str(folder / "etc"))
    assert found["small"]["id"] == small["id"]
    home.must("base", "rm", "moving")
    assert home.cli("base", "show", "moving").code == 2
    assert "there is no such base; did you mean small" in refused(home, "--base", "smal")
    for wrong in ("/no/such", str(folder / "etc/marker"), "/"):
        assert home.cli("base", "create", "wrong", "--from", wrong).code == 2, wrong
    assert "not a state of a session" in home.cli("shell", "from-base", "-d", "--from", small["id"]).stderr


@pytest.mark.soak(part="matrix")
def test_an_archive_contains_the_base(home: Home, small: dict[str, Any], tmp_path: Path) -> None:
    home.must("shell", "from-here", "-d", "--base", "small", "--user", "root")
    inside(home, "from-here", "echo mine >/etc/mine; sleep 1000 &")
    home.must("checkpoint", "to-send", "-b", "from-here")
    home.must("export", "to-send", str(tmp_path / "sent.tar"))
    home.must("stop", "from-here", "--discard")
    with open_home("other") as other:
        other.must("import", str(tmp_path / "sent.tar"))
        (base,) = other.must("base", "list", "--json").json()
        assert (base["name"], base["id"], base["on_disk"]) == ("again", small["id"], False)
        other.must("restore", "to-send", "--new", "there")
        assert inside(other, "there", f"cat /etc/mine; jobs | wc -l; {_LOOK} || :") == f"mine\n1\n{_AS_MADE}"
        other.must("stop", "--all", "--discard")
