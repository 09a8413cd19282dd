"""The local work of `waypoint setup` as a program: `python -I -S work_program.py VERB HOME [OPTION VALUE]...`.

VERB is `install`, `check`, `doctor` or `remove`; or, for a user who is not root, `add-completion` or
`remove-completion` with `--share DIR`, the user's folder for data. Options: `--user U`, `--group G`,
`--trust own|full`, `--undo-budget BYTES`, `--hot-memory BYTES`, `--standbys N`, `--encrypt key-file|passphrase` (which
is read from stdin), `--key-file PATH`, `--criu PATH`, and `--root DIR`: all files outside of the home are written below
DIR (default: `/`).

The program prints one JSON object on each line: `{"say": text}` for what it does, `{"rows": [...]}` for the rows of
`doctor`, and finally, after a failure, `{"error": {...}}` with the four parts of a message. It exits with 0, or with
the error's exit code.
"""

import gc
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.model.packages import make_importable

if __name__ == "__main__":
    # As in daemon/main.py, to start faster. The run is too short to need garbage collection.
    gc.disable()
    sys.modules |= {"typing_extensions": None}  # type: ignore[dict-item]
    make_importable("msgspec")
    from waypoint.setup.work import main

    sys.exit(main(sys.argv[1:]))
