"""A program for the inside of a session: it watches the paths that are its arguments, except for the first, and writes
the path of each that something happens to into the file that is its first argument, one a line. The paths are those
by which it found the files, whatever has become of their names.
"""

import ctypes
import os
import struct
import sys

OF_INTEREST = 0x02 | 0x04 | 0x100  # changed, its attributes changed, something made in it

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
