"""config.json, the file that makes a folder a home: its format, and reading it."""

import json
from pathlib import Path
from typing import Any

from waypoint.linux.storage import files
from waypoint.model.errors import Failed

CONFIG = "config.json"
FORMAT = 1


def read(home: Path) -> dict[str, Any]:
    """The content of the home's config.json; empty if there is no such file. Raises Failed if it is not usable."""
    path = home / CONFIG
    try:
        config = json.loads(files.read_own(str(path)))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise broken(home, error.strerror or str(error)) from error
    except ValueError as error:
        raise broken(home, str(error)) from error
    if not isinstance(config, dict):
        raise broken(home, "it is not a JSON object")
    if config.get("format", FORMAT) != FORMAT:
        said = f"its format is {config['format']}, but this version of Waypoint reads only format {FORMAT}"
        raise Failed("use", str(home), said, "use the version of Waypoint that made it")
    return config


def broken(home: Path, said: str) -> Failed:
    """The error for a config.json that cannot be used. `said`: why, in words."""
    next_step = "repair it, or remove it and run setup again, which resets only the settings of the home"
    return Failed("read", str(home / CONFIG), said, next_step)
