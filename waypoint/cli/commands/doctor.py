"""`waypoint doctor`, for the machine or for one running session."""

import dataclasses
import os

from waypoint.cli.caller import named_branch
from waypoint.cli.commands.sessions import report_strangers
from waypoint.cli.commands.setup import carry_out
from waypoint.cli.output import advice, print_json, print_lines, wants_colour
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem, WaypointError
from waypoint.model.paths import config_path, log_path
from waypoint.model.rendering import base, state, survey_advice, survey_table, table
from waypoint.model.session_facts import Capability
from waypoint.model.verbs import Given

EXIT_HOST_LACKS = 3


def run(given: Given) -> int:
    """Returns the exit status: 3 if sessions cannot be started, or not captured with their processes."""
    client = Client(given.text("home"))
    branch = named_branch(given)
    if (name := given.text("criu_log")) is not None:
        if branch is not None:
            raise UsageProblem("use", "--criu-log", "BRANCH is given, too", "leave out BRANCH")
        lines = client.criu_log(name).splitlines()
        if given.flag("json"):
            print_json({"log": name, "lines": lines})
        else:
            print_lines(lines)
        return 0
    return _survey(client, branch, as_json=given.flag("json")) if branch is not None else _try_all(client, given)


def _survey(client: Client, branch: str, *, as_json: bool) -> int:
    found = client.session(branch).survey()
    if as_json:
        print_json([dataclasses.asdict(one) | {"remedy": advice(one.remedy)} for one in found])
    else:
        print_lines([f"base: {base(client.session(branch).refresh().base)}", ""])
        print_lines(survey_table(found, coloured=wants_colour()))
        print_lines([advice(line) for line in survey_advice(found)])
    return EXIT_HOST_LACKS if any(one.tier != "live" for one in found) else 0


def _try_all(client: Client, given: Given) -> int:
    is_open = True
    try:
        found = client.doctor()
    except WaypointError as error:
        is_open = False
        found = _without_daemon(client, error)
    if given.flag("json"):
        print_json([_as_json(one) for one in found])
    else:
        rows = [(one.name, one.state, one.required_for, one.why) for one in found]
        print_lines(table(("CAPABILITY", "STATE", "NEEDED FOR", "WHY"), rows, coloured=wants_colour()))
        by_advice: dict[tuple[str, str], list[str]] = {}
        for one in found:
            if one.remedy and one.state != "ok":
                by_advice.setdefault((one.remedy, one.state), []).append(one.name)
        for (remedy, how), names in by_advice.items():
            print_lines([f"\n{', '.join(names)}, {state(how, coloured=wants_colour())}: {advice(remedy)}"])
    if is_open:
        report_strangers(client, each=True)
    is_lacking = any(one.state == "missing" and one.required_for in ("session", "live") for one in found)
    return EXIT_HOST_LACKS if is_lacking else 0


def _without_daemon(client: Client, error: WaypointError) -> list[Capability]:
    """Return the rows if the daemon cannot open its home: runs all checks that need no daemon.

    Raises `error` if the home is not set up, or this user may not use it.
    """
    if os.geteuid() != 0 or not os.path.exists(config_path(client.home)) or isinstance(error, UsageProblem):
        raise error
    home = Capability(
        name="the home",
        state="missing",
        why=error.said,
        remedy=error.next_step or f"see {log_path(client.home)}",
        required_for="session",
    )
    return [home, *(Capability(**row) for row in carry_out("doctor", client.home))]


def _as_json(one: Capability) -> dict[str, str]:
    return {
        "capability": one.name,
        "state": one.state,
        "why": one.why,
        "remedy": advice(one.remedy),
        "required_for": one.required_for,
        "code": one.code,
    }
