"""Importing third-party packages in an interpreter that runs without `site`, whose import takes 3 to 20 ms."""

import os
import sys


def make_importable(*names: str) -> None:
    """Extend the search path so that `import` finds the packages `names`; those that are found are imported.

    First the site-packages folder of the interpreter's environment is added. If a package is still missing, `site` adds
    all that it would have added at the start. If that does not help either, the caller's own `import` raises.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # An installed Waypoint has site-packages on the search path already. A checkout lacks its environment's folder.
    beside = f"{os.path.dirname(os.path.dirname(sys.executable))}/lib/{version}/site-packages"
    if beside not in sys.path and os.path.isdir(beside):
        sys.path.append(beside)
    try:
        for name in names:
            __import__(name)
    except ImportError:
        import site

        site.main()
