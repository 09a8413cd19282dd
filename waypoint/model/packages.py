"""Imports that cost less: of third-party packages in an interpreter that runs without `site`, whose import takes 3 to
20 ms, and of modules that others import and hardly ever use.
"""

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
else:
    ModuleType = type(sys)

_REPLACING = _thread.allocate_lock()
_HARDLY_USED = (
    *(
        "copy",
        "dataclasses",
        "fnmatch",
        "glob",
        "inspect",
        "ipaddress",
        "json",
        "locale",
        "platform",
        "shlex",
        "shutil",
    ),
    *("msgspec.inspect", "msgspec.toml", "msgspec.yaml", "textwrap", "tokenize", "tomllib", "traceback"),
)


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


def begin(*names: str) -> None:
    """Make the start of a program quick, which imports the packages `names` first. Garbage is not collected from now
    on: a program that runs for long calls `gc.enable`.

    What others import and hardly ever use is not loaded, which takes 30 ms.
    """
    import gc

    gc.disable()  # what is imported stays: looking through it again and again would take 6 ms
    import_late(*_HARDLY_USED)
    # What is None here cannot be imported, so msgspec does with typing (8 ms). Who needs it takes that back.
    sys.modules |= {"typing_extensions": None}  # type: ignore[dict-item]
    make_importable(*names)


def import_late(*names: str) -> None:
    """Have `import NAME` take no time: it gives a stand-in, which imports the module when something of it is asked for.

    `dataclasses`, for example, needs `inspect` (5 to 9 ms) only for records without a docstring.
    """
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = _StandIn(name)


class _StandIn(ModuleType):
    def __getattr__(self, attribute: str) -> object:
        with _REPLACING:  # a daemon has threads
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        __import__(self.__name__)
        return getattr(sys.modules[self.__name__], attribute)
