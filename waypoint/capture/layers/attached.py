"""Attached layers: files and folders of the host that a user attaches to a capture, each under a kind of the user's
choice (model, cache, trace). They are in the hot area, as copies.

They are copied with the user's rights while the session still runs. A restore places them in the new session's files.
"""

import os
import stat
import subprocess
from concurrent.futures import Future
from typing import Any, Literal

import msgspec

from waypoint.capture.layers.layer import Area, Attachment, Layer, Part, StoredFolder, Taking
from waypoint.linux.calls import programs
from waypoint.linux.storage import access, filesystem
from waypoint.linux.storage.deep import remove_path, walk
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import Failed, StateConflict, UnknownName, UsageProblem
from waypoint.model.records import AttachedLayer, Capture, Layers, User
from waypoint.upper import placing
from waypoint.upper.placing import Occupied

_CONTENT = "content"
_TRY_AGAIN = "remove the cause, and try again"
_COPYING = ("-R", "--preserve=mode,timestamps,links", "--reflink=auto", "--sparse=auto", "--no-target-directory")


class AttachedPart(Part):
    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._copied: Future[Layers] | None = None

    def prepare(self) -> None:
        if self.taking.options.attach:
            self._copied = self.taking.executor.submit(self._copy_all)

    def ready(self) -> None:
        self.records()

    def records(self) -> Layers:
        return {} if self._copied is None else self._copied.result()

    def cancel(self) -> None:
        if self._copied is not None:
            self._copied.exception()  # waits for its end; the hot area is removed with the capture

    def _copy_all(self) -> Layers:
        area, capture_id = self.taking.area, self.taking.capture_id
        return {one.kind: msgspec.to_builtins(_copy(area, capture_id, one)) for one in self.taking.options.attach}


class Attached(Layer):
    """All attached layers of a capture, whatever their kinds are."""

    kind = "attached"

    def part(self, taking: Taking) -> AttachedPart:
        return AttachedPart(taking)

    def of(self, origin: Capture, kind: str) -> AttachedLayer:
        """The record of an attached layer. Raises UnknownName."""
        kinds = sorted(name for name, record in origin.layers.items() if record.get("attached"))
        if kind not in kinds:
            on = f"the attached layer {kind} of {origin.id[:12]}"
            said = (
                f"the attached layers of this capture are: {', '.join(kinds)}" if kinds else "nothing is attached to it"
            )
            raise UnknownName("find", on, said, f"see 'waypoint layer list {origin.id[:12]}'")
        return msgspec.convert(origin.layers[kind], AttachedLayer)

    def folders(self, area: Area, origin: Capture, kind: str) -> dict[str, StoredFolder]:
        return {"content": StoredFolder(area.hot.attached(origin.id, kind), "user")}

    def facts(self, record: dict[str, Any]) -> dict[str, Any]:
        return record

    def add(self, area: Area, capture_id: str, one: Attachment) -> AttachedLayer:
        """Attach a layer to the capture's folder in the hot area, in place of one of this kind, if there is one."""
        remove_path(area.hot.attached(capture_id, one.kind))
        return _copy(area, capture_id, one)

    def get(self, area: Area, origin: Capture, kind: str, dest: str, user: User) -> AttachedLayer:
        """Copy the layer to `dest`, an absolute path on the host that does not exist, with the rights of `user`."""
        found = self.of(origin, kind)
        with access.as_user(user.uid, user.gid, user.groups):
            is_taken = os.path.lexists(dest)
        if is_taken:
            raise StateConflict("write", dest, "it exists", "name a path that does not exist", code="name-taken")
        _run_copy("write", dest, area.hot.attached(origin.id, kind), (f"./{_CONTENT}", dest), user)
        return found

    def place(
        self, area: Area, origin: Capture, kind: str, path: str, where: placing.Where, user: User
    ) -> AttachedLayer:
        """Copy the layer to `path` in the files of a session that has not started. They belong to `user`, a user of the
        session. Raises StateConflict if the path exists.
        """
        found, content = self.of(origin, kind), area.hot.attached(origin.id, kind) / _CONTENT

        def copy(folder: int, target: str) -> None:
            programs.run("cp", *_COPYING, "--", content, target, pass_fds=(folder,))
            programs.run("chown", "-hR", "--", f"{user.uid}:{user.gid}", target, pass_fds=(folder,))

        try:
            placing.place(where, path, (user.uid, user.gid), copy)
        except Occupied as error:
            next_step = "name a path that does not exist in the session"
            raise StateConflict(f"place the layer {kind} at", path, str(error), next_step) from error
        except subprocess.CalledProcessError as error:
            raise Failed(f"place the layer {kind} at", path, _words(error), _TRY_AGAIN) from error
        return found


def _copy(area: Area, capture_id: str, one: Attachment) -> AttachedLayer:
    area.check_space(filesystem.apparent_bytes(one.source, one.user), "attached files", "attach", one.source)
    folder = area.hot.attached(capture_id, one.kind)
    folder.mkdir(mode=0o700, parents=True)
    os.chown(folder, one.user.uid, one.user.gid)  # no other user can reach it, since the folders above are root's
    # -H: the path itself may be a link. Links below it are copied as links.
    _run_copy("attach", one.source, folder, ("-H", "--", one.source, f"./{_CONTENT}"), one.user)
    return _measured(folder, one)


def _run_copy(tried: str, on: str, folder: os.PathLike[str], words: tuple[str, ...], user: User) -> None:
    """Run `cp` in `folder` as `user`."""
    try:
        programs.run("cp", *_COPYING, *words, folder=folder, user=user)
    except subprocess.CalledProcessError as error:
        raise Failed(tried, on, _words(error), _TRY_AGAIN) from error


def _words(error: subprocess.CalledProcessError) -> str:
    lines = os.fsdecode(error.stderr or b"").strip().splitlines() or [f"cp ended with status {error.returncode}"]
    return lines[-1].removeprefix("cp: ")


def _measured(folder: os.PathLike[str], one: Attachment) -> AttachedLayer:
    """The record of the copy in `folder`. Raises UsageProblem if it has anything but files, folders and links."""
    size = number = 0
    with open_folder(folder) as fd:
        content = os.stat(_CONTENT, dir_fd=fd, follow_symlinks=False)
        is_folder = stat.S_ISDIR(content.st_mode)
        found = (
            (os.stat(name, dir_fd=visit.fd, follow_symlinks=False), name)
            for visit in (walk(fd, _CONTENT) if is_folder else ())
            for name in visit.others
        )
        for facts, name in found if is_folder else ((content, _CONTENT),):
            if not (stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode)):
                subject = f"{name} in it" if is_folder else "it"
                said = f"{subject} is neither a file, nor a folder, nor a link"
                raise UsageProblem("attach", one.source, said, "attach files, folders and links only")
            size += facts.st_size
            number += 1
    kind: Literal["file", "directory"] = "directory" if is_folder else "file"
    return AttachedLayer(size_bytes=size, type=kind, source=one.source, files=number)


ATTACHED = Attached()
