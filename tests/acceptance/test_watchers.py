"""Processes that watch files with inotify are captured live and watch the same files in every copy."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.restoring import in_process, in_shell, new_name, restore_as, started
from tests.acceptance.sessions import OF_THE_BASE, OWN_MOUNT, make_host_folder
from tests.homes import Home, open_home
from waypoint.client.sdk import Session
from waypoint.model.errors import CannotCapture

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.requires("criu"),
]

WATCHER = Path(__file__).with_name("watcher.py")
LOG = "/root/watched.log"


@pytest.fixture(scope="module", params=[OF_THE_BASE, pytest.param(OWN_MOUNT, marks=pytest.mark.soak(part="matrix"))])
def host_folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    with make_host_folder(request.param) as place:
        for folder in ("base/below", "bound/below", "moving/below"):
            (place / folder).mkdir(parents=True)
            (place / folder / "file").touch()
            (place / folder).with_name("file").touch()
        yield place


@pytest.fixture(scope="module")
def home(host_folder: Path) -> Iterator[Home]:
    """A home opened after the mount was made, so that its sessions see the mount."""
    with open_home("watched") as made:
        yield made


def watch(session: Session, paths: list[str]) -> None:
    session.run("sh", "-c", "cat >/root/watcher.py", stdin=WATCHER.read_bytes())
    session.exec(f"python3 /root/watcher.py {LOG} {shlex.join(paths)} </dev/null >/root/watcher.errors 2>&1 &")
    in_process(session, f"until grep -q ready {LOG} || [ -s /root/watcher.errors ]; do sleep 0.02; done")
    assert in_process(session, "cat /root/watcher.errors") == ""


def noticed(session: Session, touched: dict[str, str]) -> set[str]:
    """Touch the paths that are the keys of `touched`; return the paths that the watcher reports.

    The value of each key is the path by which the watcher found that file.
    """
    session.run("sh", "-c", f": >{LOG}; touch -c -- {shlex.join(touched)}")
    seen_all = f"[ $(sort -u {LOG} | wc -l) -ge {len(set(touched.values()))} ]"
    session.run("timeout", "10", "sh", "-c", f"until {seen_all}; do sleep 0.02; done")
    return set(in_process(session, f"cat {LOG}").splitlines())


def test_watched_files_are_watched_in_every_copy(home: Home, host_folder: Path) -> None:
    """Files of the base, of the session, renamed, bound, in shared memory; and the root folder."""
    base, moved, own = f"{host_folder}/base", f"{host_folder}/moving", "/root/own"
    still = [
        "/",
        "/etc",
        "/etc/debian_version",
        "/run",
        "/tmp",
        f"{host_folder}",
        base,
        f"{base}/file",
        f"{base}/below/file",
    ]
    still += [f"{base}/file", f"{base}/below/file", "/bound", "/bound/file", "/bound/below/file", "/dev/shm/file"]
    still += [own, f"{own}/file", "/root/\ta 'name"]
    renamed = {
        f"{host_folder}/moved": moved,
        f"{host_folder}/moved/below": f"{moved}/below",
        f"{host_folder}/moved/another": f"{moved}/file",
        f"{host_folder}/moved/below/file": f"{moved}/below/file",
        "/root/elsewhere": f"{own}/folder",
        "/root/elsewhere/file": f"{own}/folder/file",
    }
    touched = {path: path for path in still} | renamed
    everything = set(touched.values())
    with started(home, "root", binds=[f"{host_folder}/bound:/bound"]) as session:  # type: ignore[arg-type]
        made = [f"{own}/file", f"{own}/folder/file", "/dev/shm/file", still[-1]]
        in_shell(session, f"mkdir -p {own}/folder {own}/gone; touch {shlex.join(made)}")
        watch(session, [*touched.values(), f"{own}/gone"])
        in_shell(session, f"mv {moved} {host_folder}/moved; mv {host_folder}/moved/file {host_folder}/moved/another")
        in_shell(session, f"mv {own}/folder /root/elsewhere; rmdir {own}/gone")
        assert noticed(session, touched) == everything
        for _again in range(2):  # the second time, the restored session is captured
            checkpoint = new_name(session)
            session.checkpoint(checkpoint, tier="live")
            assert noticed(session, touched) == everything
            for _fork in range(2):
                assert noticed(restore_as(home, session, checkpoint, "fork"), touched) == everything
            session = restore_as(home, session, checkpoint, "restore")
            assert noticed(session, touched) == everything


def test_a_watched_file_that_was_removed_is_an_error_that_names_the_process(home: Home) -> None:
    with started(home, "root") as session:
        in_shell(session, "mkdir /root/gone; touch /root/gone/file")
        watch(session, ["/root/gone/file"])
        session.exec("exec 7</root/gone/file; rm -r /root/gone")
        with pytest.raises(CannotCapture, match=r"python3 \(pid \d+, fd 3\) watches a file that was removed") as caught:
            session.checkpoint(new_name(session), tier="live")
        assert caught.value.next_step == "end the process, or make it stop watching files"
        in_process(session, "pkill -f '[w]atcher.py'")
        session.checkpoint(new_name(session), tier="live")
