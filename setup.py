"""The part of the build that pyproject.toml cannot say: manual pages, made from the table of verbs, go to
share/man/man1.
"""

import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
PAGES = Path("build/man1")  # relative to this file, as setuptools wants it


def make_pages() -> list[str]:
    """Write the pages, and return their paths."""
    sys.path.insert(0, str(ROOT))
    from waypoint.model.verbs.manual import pages

    (ROOT / PAGES).mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (ROOT / PAGES / name).write_text(text)
    return [str(PAGES / name) for name in pages()]


setup(data_files=[("share/man/man1", make_pages())])
