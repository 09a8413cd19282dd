"""What the daemon's interpreter, started without `site` (20 ms), has to be told before the rest is imported."""

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


def leave_out_ssl() -> None:
    """Let `import ssl` fail: asyncio, which can do without it, would load OpenSSL, 8 ms and 5 MB for nothing."""
    sys.modules["ssl"] = None  # type: ignore[assignment]  # the import system's own sign
