"""The unit with which systemd starts and watches the daemon of a home: its text and its name.

Sources: systemd.service(5), systemd.kill(5), systemd.resource-control(5), systemd's CGROUP_DELEGATION document.
"""

from waypoint.model.paths import SYSTEM_HOME, home_id

_UNIT = """\
# Written by 'waypoint setup', removed by 'waypoint setup --remove'. To change settings, use 'systemctl edit'.
[Unit]
Description=Waypoint: the sessions of {shown}
Documentation=man:waypoint(1)
After=local-fs.target
# The second one is the memory for captures: at a shutdown it must stay mounted until the daemon has moved them.
RequiresMountsFor={home} {memory}

[Service]
Type=exec
ExecStart={command}
# The supervisor restarts the daemon; this is for the case that supervisor and daemon are killed at once.
Restart=on-failure
RestartSec=1
# A stop or a restart signals only `waypoint daemon run`, which stops the daemon and its supervisor. Sessions continue.
KillMode=process
TimeoutStopSec=75
# The daemon makes cgroups below its own. Sessions run in a scope that the daemon requests (waypoint-{id}.scope); it
# continues when this unit stops.
Delegate=yes
OOMPolicy=continue
TasksMax=infinity
# No RuntimeDirectory: systemd would remove it at a stop, but the next daemon needs it to find the running sessions.
# No sandbox (PrivateTmp, ProtectSystem, ...): a session is a copy of the machine as the daemon sees it.

[Install]
WantedBy=multi-user.target
"""


def name_of(home: str) -> str:
    """The unit's name: `waypoint.service` for the machine's home, one with the home's id for any other."""
    return "waypoint.service" if home == SYSTEM_HOME else f"waypoint-{home_id(home)}.service"


def text_of(home: str, program: list[str]) -> str:
    """The unit's text. `program`: the words of the command `waypoint`, the first of them an absolute path."""
    words = [*program, "--home", home, "daemon", "run"]
    return _UNIT.format(
        shown=_specifiers(home),
        home=_quoted(home, dollars=False),
        memory=_quoted(f"{home}/hot/.memory", dollars=False),
        id=home_id(home),
        command=" ".join(map(_quoted, words)),
    )


def _specifiers(text: str) -> str:
    return text.replace("%", "%%").replace("\n", "\\n")


def _quoted(word: str, *, dollars: bool = True) -> str:
    """The word in systemd's quotes. `dollars`: also escape `$`, for ExecStart, in which systemd replaces variables."""
    text = _specifiers(word.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{text.replace("$", "$$") if dollars else text}"'
