"""Where click is, for an interpreter that was started without `site`.

The hot verbs never come here: `site` costs 3 to 15 ms and finds what they do not need.
"""

import os
import sys


def make_importable() -> None:
    """Let `import click` work: from beside our package, from the interpreter's environment, else by way of `site`."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    beside = f"{os.path.dirname(os.path.dirname(sys.executable))}/lib/{version}/site-packages"
    # An installed package has its own folder on the path already; a checkout has not the environment it lies beside.
    if beside not in sys.path and os.path.isdir(beside):
        sys.path.append(beside)
    try:
        import click  # noqa: F401  # to see whether it is there
    except ImportError:
        import site

        site.main()
