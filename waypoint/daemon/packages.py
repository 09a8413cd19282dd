"""Where h11 and msgspec are, for an interpreter that was started without `site`, which would take 20 ms."""

import os
import sys


def make_importable() -> None:
    """Let them be imported: from beside our package, from the interpreter's environment, else by way of `site`."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # An installed package has its own folder on the path already; a checkout has not the environment it lies beside.
    beside = f"{os.path.dirname(os.path.dirname(sys.executable))}/lib/{version}/site-packages"
    if beside not in sys.path and os.path.isdir(beside):
        sys.path.append(beside)
    try:
        import h11  # noqa: F401 - to see whether it is there
        import msgspec  # noqa: F401
    except ImportError:
        import site

        site.main()
