"""Root's daemon hides the own home of a session's user, and nothing else that this user would like it to."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.alone import OWN
from tests.acceptance.people import Person
from tests.homes import Home
from tests.session.let_in import stop, succeeds

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout")]


@contextlib.contextmanager
def placed(person: Person, name: str = OWN, target: str | None = None, *files: str) -> Iterator[Path]:
    """`name` in the person's home: a link to `target`, or a folder with `files`. All is the person's."""
    path = person.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if target is not None:
        path.symlink_to(target)
    else:
        path.mkdir()
    for file in files:
        (path / file).touch()
    made = [path, *path.parents[: len(Path(name).parts) - 1], *(path / file for file in files)]
    for one in made:
        os.chown(one, person.uid, person.gid, follow_symlinks=False)
    try:
        yield path
    finally:
        for file in files:
            (path / file).unlink()
        for one in (path, *path.parents[: len(Path(name).parts) - 1]):
            one.unlink() if one.is_symlink() else one.rmdir()


def seen(home: Home, person: Person, folder: str | Path) -> set[str]:
    """What a new session of the person's shows of `folder`."""
    succeeds(person.can(home, "shell", "seen", "-d"))
    try:
        return set(succeeds(person.can(home, "exec", "-b", "seen", "--", f"ls -A {folder}")).split())
    finally:
        stop(home, "seen")


@pytest.mark.parametrize("link", [OWN, ".local/share", ".local"])
def test_a_link_of_the_users_hides_nothing(shared: Home, person: Person, tmp_path: Path, link: str) -> None:
    """Not even where what it leads to looks like a home, be it root's or the user's."""
    below = tmp_path / os.path.relpath(OWN, link)
    below.mkdir(parents=True, exist_ok=True)
    (below / "config.json").touch()
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o55 if folder == tmp_path else folder.stat().st_mode | 0o11)
    for owner in (0, person.uid):
        for path in (below, below / "config.json"):
            os.chown(path, owner, owner)
        with placed(person, link, str(tmp_path)):
            assert "config.json" in seen(shared, person, below)


def test_hidden_is_a_folder_of_the_users_own_with_a_config(shared: Home, person: Person) -> None:
    with placed(person) as own:
        (own / "file").touch()
        assert seen(shared, person, own) == {"file"}
        (own / "file").unlink()
    with placed(person, OWN, None, "config.json", "file") as own:
        assert seen(shared, person, own) == set()
        os.chown(own, 0, 0)
        assert seen(shared, person, own) == {"config.json", "file"}


@pytest.mark.parametrize("who", ["root", "user"])
def test_no_bind_shows_a_users_own_home(shared: Home, person: Person, who: str) -> None:
    """Root's sessions bind none of any user's."""
    words = ("shell", "bound", "-d", "--bind", f"{person.home}:/mnt")
    with placed(person, OWN, None, "config.json"):
        if who == "root":
            refused = shared.cli(*words, "--user", "root")
            code, said = refused.code, refused.stderr
        else:
            done = person.can(shared, *words)
            code, said = done.returncode, done.stderr
        assert (code, "a home of Waypoint, or its runtime folder, lies there\n" in said) == (2, True), said
    succeeds(person.can(shared, *words))
    stop(shared, "bound")
