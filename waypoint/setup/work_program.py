"""The local work of `waypoint setup` as a program: `python -I -S work_program.py VERB HOME [OPTION VALUE]...`.

VERB is `install`, `add-outside` (what is not in the home), `check`, `doctor` or `remove`; or, for a user who is not
root, `add-completion` or `remove-completion` with `--share DIR`, the user's folder for data. Options: `--user U`,
`--group G`, `--trust own|full`, `--criu PATH`, and `--root DIR`, below which everything is put that is not in the home
(default: `/`).

The program tells what it does on stdout, as one JSON object on each line: `{"say": text}`, `{"rows": [...]}` for the
rows of `doctor`, `{"facts": {...}}` for what `check` has found, and after a failure at last `{"error": {...}}` with the
four parts of a message. It exits with 0, or with the error's exit code.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.model.packages import begin

if __name__ == "__main__":
    begin()
    from waypoint.setup.work import main

    sys.exit(main(sys.argv[1:]))
