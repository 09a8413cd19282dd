"""The type of the paths that the functions of this room take.

A module of its own because the launcher loads it: `programs` would bring `subprocess` and `threading` along.
"""

import os

StrPath = str | os.PathLike[str]
