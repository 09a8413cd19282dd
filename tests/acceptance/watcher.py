"""A program that runs inside a session: `watcher.py LOG PATH...` watches the paths with inotify.

It writes the path of each file that changes to LOG, a line each: the path that was given, even after a rename.
"""

import ctypes
import os
import struct
import sys

OF_INTEREST = 0x02 | 0x04 | 0x100  # IN_MODIFY, IN_ATTRIB, IN_CREATE

libc = ctypes.CDLL(None, use_errno=True)
inotify = libc.inotify_init1(0)
watched = {libc.inotify_add_watch(inotify, os.fsencode(path), OF_INTEREST): path for path in sys.argv[2:]}
assert len(watched) == len(sys.argv) - 2, watched
with open(sys.argv[1], "a", buffering=1) as log:
    log.write("ready\n")
    while events := os.read(inotify, 1 << 16):
        place = 0
        while place < len(events):
            number, mask, _cookie, size = struct.unpack_from("iIII", events, place)
            place += 16 + size
            if mask & OF_INTEREST:
                log.write(f"{watched[number]}\n")
