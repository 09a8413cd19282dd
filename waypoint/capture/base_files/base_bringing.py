"""Bringing files of the base from the store to where they lie over the machine's, in the tree of a new session.

The tree may have come with an import, as may what the store tells: nothing of it leads out of the tree.
"""

import contextlib
import os
import stat
from collections.abc import Iterator

import msgspec

from waypoint.capture.base_files.base_listing import is_kept, lower_of, opened_in_base
from waypoint.capture.base_files.mentioned import BaseFile
from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import CannotCapture, Failed, StoreDamaged
from waypoint.store.content.object_reader import ANOTHER, ObjectReader
from waypoint.store.packs.codecs import MOST_BYTES
from waypoint.store.packs.digests import Kind, digest_of
from waypoint.store.trees import entries
from waypoint.store.trees.bringing import Bringing
from waypoint.store.trees.cutting import read_at
from waypoint.store.trees.earlier import Earlier
from waypoint.store.trees.entries import TreeEntry
from waypoint.upper import layout
from waypoint.upper.contract import NEXT_STEPS

_FOLDER = os.O_PATH | os.O_DIRECTORY
_TRIED = "bring back"


class BaseBringing:
    """From the part `base` of an image, a ROOT, to the upper tree at the path `tree`, over the base at `base`."""

    def __init__(self, reader: ObjectReader, root: bytes, base: str, tree: str) -> None:
        self._part = Earlier(reader, root)
        self._bringing = Bringing(reader, root)
        self._base = base
        self._tree = tree

    def bring(self, files: list[BaseFile]) -> list[BaseFile]:
        """Have those of the files in the tree whose content is another one on the machine. Returns which, sorted.

        Raises StoreDamaged, CannotCapture if they cannot lie over what the machine has there, Failed.
        """
        brought = []
        for file in sorted(files):
            try:
                brought += [file] if self._bring(file) else []
            except OSError as error:
                next_step = NEXT_STEPS.get(error.errno or 0, "see the kernel's log (dmesg), and try again")
                raise Failed(_TRIED, file.shown, error.strerror or str(error), next_step) from error
        return brought

    def _bring(self, file: BaseFile) -> bool:
        *above, name = names = file.name.split(b"/")
        top = os.fsencode(layout.folder_of(file.target))
        entry = self._part.find([top, *names])
        if entry is None or entry.kind != entries.REGULAR:
            raise StoreDamaged(_TRIED, file.shown, "the image does not have it", ANOTHER)
        if self._is_on_machine(file, entry):
            return False
        with self._folder(file, top, above) as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            xattrs = [one for one in entry.xattrs if is_kept(one[0])]
            self._bringing.make_file(folder, msgspec.structs.replace(entry, xattrs=xattrs))
        return True

    def _is_on_machine(self, file: BaseFile, entry: TreeEntry) -> bool:
        """Whether the machine's file has this content, and only another time."""
        with contextlib.suppress(OSError, EOFError), opened_in_base(self._base, file) as found:
            facts = os.fstat(found)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size != entry.size:
                return False
            with open(beneath.name_of(found), "rb") as opened:
                return self._has_content(opened.fileno(), entry)
        return False

    def _has_content(self, fd: int, entry: TreeEntry) -> bool:
        place = 0
        for digest, length in self._part.rows_of(entry):
            if digest is None:
                return False  # a hole of any length: it is not worth a look
            if length > MOST_BYTES or digest_of(Kind.DATA, read_at(fd, place, length)) != digest:
                return False
            place += length
        return True

    @contextlib.contextmanager
    def _folder(self, file: BaseFile, top: bytes, above: list[bytes]) -> Iterator[int]:
        """A descriptor of the folder of the tree in which the file is to lie; it and those above it are made, like the
        machine's, or like those of the image, if the machine has none.
        """
        with open_folder(self._tree) as tree:
            with contextlib.suppress(FileExistsError):
                os.mkdir(top, 0o700, dir_fd=tree)
            folder = beneath.open_beneath(tree, os.fsdecode(top), _FOLDER)
        try:
            for depth, name in enumerate((b"base", *above)):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder)
                inner = beneath.open_beneath(folder, os.fsdecode(name), os.O_RDONLY | os.O_DIRECTORY)
                os.close(folder)
                folder = inner
                self._dress(folder, file, top, above[:depth])
            yield folder
        finally:
            os.close(folder)

    def _dress(self, folder: int, file: BaseFile, top: bytes, path: list[bytes]) -> None:
        """Give the folder at `path` of the tree its owner and its mode: a session sees those of what lies on top."""
        facts = self._facts(file.target, os.fsdecode(b"/".join(path)))
        if facts is not None and not stat.S_ISDIR(facts.st_mode):
            said = f"this machine has a link, or a file, where the folder of {file.shown} was"
            raise CannotCapture(_TRIED, file.shown, said, "move that away, and try again")
        if facts is not None:
            uid, gid, mode = facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)
        else:
            entry = self._part.find([top, *path])
            uid, gid, mode = (entry.uid, entry.gid, entry.mode) if entry is not None else (0, 0, 0o755)
        os.chown(folder, uid, gid)
        os.chmod(folder, mode)

    def _facts(self, target: str, path: str) -> os.stat_result | None:
        """Of what the machine has at the path; None if it has nothing there."""
        lower = lower_of(self._base, target)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), open_folder(lower) as root:
            if not path:
                return os.fstat(root)
            with beneath.parent_of(root, path) as (above, name):
                return os.stat(name, dir_fd=above, follow_symlinks=False)
        return None
