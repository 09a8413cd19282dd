"""Attaching to a capture that is there: a new one has all of it and more, and each can go without the other."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside
from tests.homes import Home, open_home
from tests.parcel.attachable import folder, picture

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "public-checkout")]

__all__ = ["folder"]


@pytest.fixture
def home() -> Iterator[Home]:
    """Whose captures all are removed by the test."""
    with open_home("later") as made:
        made.must("shell", "-d", "main", "--cwd", "/srv")
        inside(made, "main", "echo mine > made; touch /dev/shm/x; sleep 1000 & word=kept")
        yield made


def test_a_new_capture_has_all_of_it_and_more(home: Home, folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("one\n")
    first = home.must("checkpoint", "a", "--tier", "live", "--attach", f"trace={trace}", "--json").json()
    trace.write_text("two\n")
    words = (f"trace={trace}", f"model={folder}")
    made = home.must("layer", "attach", "a", *words, "--json").json()
    assert (made["before"], [one["kind"] for one in made["layers"]]) == (first["capture"], ["model", "trace"])
    shown = home.must("show", "a", "--json").json()
    assert (shown["capture"], shown["parents"], shown["tier"]) == (made["capture"], [first["capture"]], "live")
    assert home.must("layer", "get", first["capture"], "trace", "-").stdout == "one\n"
    assert home.must("layer", "get", "a", "trace", "-").stdout == "two\n"
    (entry,) = home.must("op", "log", "-n", "1", "--json").json()
    assert (entry["verb"], list(entry["moves"])) == ("attach", ["a"])
    home.must("undo", str(entry["number"]))
    assert home.must("layer", "get", "a", "trace", "-").stdout == "one\n"
    (entry,) = home.must("op", "log", "-n", "1", "--json").json()
    home.must("undo", str(entry["number"]))
    home.must("stop", "main")
    home.must("gc", "--keep-operations", "0s")  # what the first one has on disk goes
    assert not (home.path / "hot" / first["capture"]).exists()
    home.must("fork", "a", "copy", "--attach-at", "model=/srv/model")
    assert inside(home, "copy", "cat made; ls /dev/shm; echo $word; jobs | wc -l; ls model/sub").startswith(
        "mine\nx\nkept\n1\n"
    )
    home.must("stop", "copy", "--discard")
    more = home.must("layer", "attach", "a", f"cache={trace}", "--json").json()
    assert [one["kind"] for one in more["layers"]] == ["cache", "model", "trace"]
    home.must("layer", "get", "a", "model", str(tmp_path / "back"))
    assert picture(tmp_path / "back") == picture(folder)


def test_it_is_an_image_of_its_own(home: Home, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("one\n")
    first = home.must("checkpoint", "a", "--tier", "files", "--wait", "--json").json()
    made = home.must("layer", "attach", "a", f"trace={trace}", "--json").json()
    home.must("fork", "a", "then")
    home.must("checkpoint", "b", "-b", "then", "--tier", "files", "--wait")
    shown = home.must("show", "a", "--json").json()
    assert shown["durable"] is True
    assert shown["image"] != first["image"]
    home.must("evict", made["capture"], first["capture"])
    assert home.must("layer", "get", "a", "trace", "-").stdout == "one\n"
    assert home.must("layer", "list", first["capture"], "--json").json() == []
    assert home.must("verify", "--read-data", "--json").json()["problems"] == []


def test_what_it_cannot_be_attached_to_stays_as_it_is(home: Home, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    word = f"trace={tmp_path}/x"
    kept = home.must("checkpoint", "a", "--tier", "files", "--json").json()["capture"]
    done = home.cli("layer", "attach", "main", word)
    assert done.code == 4
    assert "attach to a checkpoint of it: waypoint checkpoint NAME -b main --attach KIND=PATH" in done.stderr
    home.must("checkpoint", "b", "-b", "main", "--tier", "files", "--attach", word)
    done = home.cli("layer", "attach", kept, word)
    assert done.code == 2
    assert "next: a capture gets one by 'waypoint checkpoint NAME'" in done.stderr
    assert home.cli("layer", "attach", "nosuch", word).code == 2
    before = set(os.listdir(home.path / "hot"))
    assert home.cli("layer", "attach", "a", f"trace={tmp_path}/nosuch").code == 2
    assert set(os.listdir(home.path / "hot")) == before
    home.must("stop", "main")
    made = home.must("layer", "attach", "main", word, "--json").json()
    assert home.must("show", "main", "--json").json()["capture"] == made["capture"]


def test_nobody_attaches_to_what_is_anothers(shared: Home, person: Person) -> None:
    own = person.home / "trace"
    own.write_text("mine\n")
    shared.must("shell", "-d", "main")
    shared.must("checkpoint", "roots", "--tier", "files")
    before = shared.must("show", "roots", "--json").json()["capture"]
    done = person.can(shared, "layer", "attach", "roots", f"trace={own}")
    assert (done.returncode, done.stdout) == (3, "")
    assert shared.must("show", "roots", "--json").json()["capture"] == before
    shared.must("stop", "main", "--discard")
