"""`waypoint install` and `waypoint uninstall`."""

import dataclasses
import os
import shutil
import sys

from waypoint.agents import install as installing
from waypoint.cli.output import note, print_json, print_lines
from waypoint.model.errors import HostLacks, UsageProblem
from waypoint.model.verbs import Given, did_you_mean

_PROGRAM = "waypoint"


def install(given: Given) -> int:
    agent = _agent(given)
    done = installing.install(agent, _command(), _environ())
    if given.flag("json"):
        print_json(dataclasses.asdict(done))
        return 0
    print_lines([f"installed the plugin {done.plugin} in {agent}"])
    if done.kept is not None:
        note(f"the settings from before are kept in {done.kept}")
    note(f"to begin: waypoint shell -- {agent}; or on this machine: WAYPOINT_BRANCH=work {agent}")
    if agent == "codex":
        note("codex asks once whether it may run the plugin's hooks; without them no points are made")
    return 0


def uninstall(given: Given) -> int:
    agent = _agent(given)
    done = installing.uninstall(agent, _environ())
    if given.flag("json"):
        print_json(dataclasses.asdict(done))
        return 0
    if not done.was_there:
        note(f"the plugin is not installed in {agent}")
        return 0
    print_lines([f"removed the plugin from {agent}"])
    if not done.as_before:
        note(f"{done.settings} was changed since the installation; only what Waypoint had added was removed")
    return 0


def _agent(given: Given) -> installing.Agent:
    agent = given.required("agent")
    if agent not in installing.AGENTS:
        said = f"it is none of {', '.join(installing.AGENTS)}{did_you_mean(agent, installing.AGENTS)}"
        raise UsageProblem("install the plugin in", agent, said, "other agents: see docs/agents.md")
    return agent


def _environ() -> dict[str, str]:
    return {"HOME": os.path.expanduser("~"), **os.environ}


def _command() -> str:
    """The path of the waypoint command: the one in PATH, or the one beside this Python."""
    beside = os.path.join(os.path.dirname(sys.executable), _PROGRAM)
    found = shutil.which(_PROGRAM) or (beside if os.access(beside, os.X_OK) else None)
    if found is None:
        step = "add its folder to PATH, or install Waypoint with pip"
        raise HostLacks("find", "the command waypoint", "it is not in PATH", step)
    return os.path.abspath(found)
