"""`checkpoint --attach`, `layer list`, `layer get`, and `--attach-at` of `restore` and `fork`."""

import json
import os
from pathlib import Path

import pytest

from tests.answers import unusual
from tests.collecting import collecting
from tests.homes import Home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

SHOW = "cd {}; find . | sort; cat sub/weights; stat -c '%U %a' sub/weights"


@pytest.fixture
def attached(home: Home, branch: str, tmp_path: Path) -> str:
    """A checkpoint with the attached layers `model` (a folder with a link) and `trace` (a file)."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/weights").write_text("w\n")
    (folder / "sub/weights").chmod(0o4755)
    (folder / "link").symlink_to("/etc/passwd")
    (tmp_path / "trace").write_text("t\n")
    made = home.must(
        *("checkpoint", f"{branch}-a", "-b", branch, "--attach", f"model={folder}"),
        *("--attach", f"trace={tmp_path}/trace", "--json"),
    ).json()
    assert (made["tier"], unusual(made["degraded"])) == ("live", [])
    return f"{branch}-a"


def test_attached_layers_come_back_on_the_machine_and_in_sessions(
    home: Home, branch: str, attached: str, tmp_path: Path
) -> None:
    found = {one["kind"]: one for one in home.must("layer", "list", attached, "--json").json()}
    assert {"files", "processes", "terminal", "model", "trace"} <= found.keys()
    assert (found["trace"]["type"], found["trace"]["size_bytes"]) == ("file", 2)
    home.must("layer", "get", attached, "model", str(tmp_path / "out"))
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["link", "sub", "weights"]
    assert (tmp_path / "out/link").is_symlink()

    home.must("fork", attached, f"{branch}-f", "--attach-at", "model=/opt/deep/model")
    shown = home.must("exec", "-b", f"{branch}-f", "--", SHOW.format("/opt/deep/model")).stdout
    assert shown == ".\n./link\n./sub\n./sub/weights\nw\nroot 755\n", "a set-user-ID bit is not kept"
    home.must("exec", "-b", f"{branch}-f", "--", "cd /; rm -r /opt")
    home.must("checkpoint", f"{branch}-g", "-b", f"{branch}-f", "--attach", f"again={tmp_path}/model")
    home.must("restore", f"{branch}-g", "-b", f"{branch}-f", "--attach-at", "again=/opt/again")
    assert home.must("exec", "-b", f"{branch}-f", "--", "find /opt -type f").stdout == "/opt/again/sub/weights\n"

    home.must("undo", "-b", f"{branch}-f")
    home.must("stop", f"{branch}-f", "--discard")
    capture = home.must("show", attached, "--json").json()["capture"]
    assert (home.path / "hot" / capture / "attached").is_dir()
    home.must("rm", attached, f"{branch}-g")
    home.must("branch", "delete", f"{branch}-f")
    home.must("branch", "delete", branch, "--stop")
    home.must("gc", "--keep-operations", "0")
    assert not (home.path / "hot" / capture).exists()


def test_wrong_attachments_are_refused_and_nothing_happens(
    home: Home, branch: str, attached: str, tmp_path: Path
) -> None:
    (tmp_path / "with-pipe").mkdir()
    os.mkfifo(tmp_path / "with-pipe/pipe")
    name, new = f"{branch}-n", f"{branch}-new"
    there = str(tmp_path / "trace")

    def history() -> list[tuple[str, list[str]]]:
        return [(one["capture"], one["names"]) for one in home.must("log", "--all", "--json").json()]

    before = history()
    with collecting() as row:
        for words, code, said in (
            (("checkpoint", name, "-b", branch, "--attach", "model"), 2, "it is not KIND=PATH"),
            (("checkpoint", name, "-b", branch, "--attach", "A b=/x"), 2, "'A b' is not a kind"),
            (("checkpoint", name, "-b", branch, "--attach", "a=/x", "--attach", "a=/y"), 2, "given twice"),
            (
                ("checkpoint", name, "-b", branch, "--attach", f"files={there}"),
                2,
                "files is the name of a layer of Waypoint",
            ),
            (
                ("checkpoint", name, "-b", branch, "--attach", f"m={home.path.parent}"),
                2,
                "it contains a home of Waypoint",
            ),
            (("layer", "attach", attached, f"m={home.path.parent}"), 2, "contains a home of Waypoint"),
            (("checkpoint", name, "-b", branch, "--attach", "m=/nope"), 2, "No such file or directory"),
            (("checkpoint", name, "-b", branch, "--attach", f"m={tmp_path}/with-pipe"), 2, "pipe in it is neither"),
            (
                ("layer", "get", attached, "nope", str(tmp_path / "x")),
                2,
                "attached layers of this capture are: model, trace",
            ),
            (("layer", "get", attached, "trace", there), 4, "it exists"),
            (
                ("layer", "get", attached, "files", str(tmp_path / "x")),
                2,
                "attached layers of this capture are: model, trace",
            ),
            (("fork", attached, new, "--attach-at", "nope=/x"), 2, "attached layers of this capture are: model, trace"),
            (("fork", attached, new, "--attach-at", "trace=/proc/x"), 2, "belongs to the session itself"),
            (("fork", attached, new, "--attach-at", "trace=x"), 2, "it is not an absolute path"),
            (("fork", attached, new, "--attach-at", "trace=/etc/passwd"), 4, "it exists in the session"),
            (("restore", attached, "-b", branch, "--only", "files", "--attach-at", "trace=/x"), 2, "--only"),
        ):
            with row(" ".join(words)):
                done = home.cli(*words)
                assert (done.code, said in done.stderr) == (code, True), done
    assert history() == before  # their images and changes are found in the background
    assert home.cli("show", new).code == 2


def test_a_layer_is_attached_to_a_capture_that_exists(home: Home, branch: str, attached: str, tmp_path: Path) -> None:
    """Also to one that is in the store only, and to the tip of a live branch; undo moves the name back."""
    home.must("evict", attached)
    before = home.must("show", attached, "--json").json()
    (tmp_path / "trace").write_text("more\n")
    made = home.must("layer", "attach", attached, f"trace={tmp_path}/trace", "--wait", "--json").json()
    assert (made["parent"], made["durable"], made["size_bytes"]) == (before["capture"], True, 5)
    after = home.must("show", attached, "--json").json()
    assert (after["capture"], after["parents"], after["tier"]) == (made["capture"], [before["capture"]], "live")
    same = ("files", "processes", "terminal", "model")
    assert [after["layers"][kind]["digest"] for kind in same] == [before["layers"][kind]["digest"] for kind in same]
    manifest = json.loads((home.path / "store/images" / made["image"]).read_text())
    assert manifest["parents"] == [home.must("show", before["capture"], "--json").json()["image"]]
    home.must("evict", attached)
    home.must("fork", attached, f"{branch}-f", "--attach-at", "trace=/opt/trace")
    assert home.must("exec", "-b", f"{branch}-f", "--", "cat /opt/trace").stdout == "more\n"

    home.must("layer", "attach", branch, f"cache={tmp_path}/trace")
    tip = home.must("show", branch, "--json").json()
    assert tip["parents"] == [before["capture"]]
    home.must("layer", "get", branch, "cache", str(tmp_path / "got"))
    assert (tmp_path / "got").read_text() == "more\n"
    home.must("checkpoint", f"{branch}-next", "-b", branch)
    assert home.must("show", f"{branch}-next", "--json").json()["parents"] == [tip["capture"]]

    done = [one["number"] for one in home.must("op", "log", "--json").json() if one["verb"] == "attach"]
    home.must("undo", str(done[-1]))
    assert home.must("show", attached, "--json").json()["capture"] == before["capture"]
    home.must("layer", "get", attached, "trace", str(tmp_path / "old"))
    assert (tmp_path / "old").read_text() == "t\n"
    for words, code, said in (
        ((before["capture"], f"x={tmp_path}/trace"), 2, "a capture never changes"),
        ((attached, "trace"), 2, "it is not KIND=PATH"),
        ((attached, f"shell={tmp_path}/trace"), 2, "a layer of Waypoint itself"),
        (("nothing", f"x={tmp_path}/trace"), 2, "nothing has this name"),
    ):
        refused = home.cli("layer", "attach", *words)
        assert (refused.code, said in refused.stderr) == (code, True), refused
    home.must("stop", f"{branch}-f", "--discard")
