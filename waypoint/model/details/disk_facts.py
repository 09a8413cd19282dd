"""Answers of the control interface about the disk, as records (model/facts). Standard library only."""

from dataclasses import dataclass
from typing import TypedDict


class HolderFacts(TypedDict):
    """What a capture, a live session or a stranger has on disk, in bytes.

    `kind`: `capture`, `session`, or that of a stranger with `unknown ` before it. `id`: of the capture or session.
    `names`: those that stand for the capture; the session's branch. `files_bytes`: of its files; `own_files_bytes`:
    those of them that nothing else has, which is what removing it gives back of them. `processes_bytes`: of the images
    of its processes and of its terminal, which nothing else has. `stored_bytes`: what its image takes of the store,
    compressed, also what other images have, too; None if it is not there or cannot be read, or if the request names no
    holders: for each the store is read. `evicted`: it is a capture that is in the store alone.
    """

    kind: str
    id: str
    names: list[str]
    files_bytes: int
    own_files_bytes: int
    processes_bytes: int
    stored_bytes: int | None
    evicted: bool


class MountedAt(TypedDict):
    """The files of `capture` are mounted at `folder`."""

    capture: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DuFacts:
    """What a home has on disk, in bytes.

    `holders`: captures (the newest first), sessions, strangers. `logical_bytes`: the sum of all that these have, as if
    nothing were shared. `unique_bytes`: the sum of what the holders have, with each shared block counted once; if the
    request names holders: the sum of `own_files_bytes` and `processes_bytes` of these. `stored_bytes`: of the store.
    `hot_bytes`: of the hot area, which has all but the files of captures; `memory_bytes`: of what will come there, and
    is in memory yet. `pool_bytes`: what the pool of files takes of the disk. `overhead_bytes`: what of it no file has:
    room for writing, and what btrfs needs.
    `encrypted`: whether the store is. `mounted`: the captures that are mounted on the machine, until umount(8).
    `applied_bytes`: of files of the machine that an apply has replaced. `names_bytes`: of names.db. `logs_bytes`: of
    the logs. `rings_bytes`: of the terminals of live sessions, in memory. `home_bytes`: what the whole home takes of
    the disk, which has `free_bytes` left.
    """

    holders: list[HolderFacts]
    logical_bytes: int
    unique_bytes: int
    stored_bytes: int
    hot_bytes: int
    memory_bytes: int
    pool_bytes: int
    overhead_bytes: int
    applied_bytes: int
    names_bytes: int
    logs_bytes: int
    rings_bytes: int
    home_bytes: int
    free_bytes: int
    encrypted: bool
    mounted: list[MountedAt]
