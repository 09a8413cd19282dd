"""The type of path parameters. A separate module because the launcher loads it: `programs` imports `subprocess`."""

import os

StrPath = str | os.PathLike[str]
