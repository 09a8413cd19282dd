"""`waypoint profile list`, `profile show` and `profile test`."""

import os
import signal

from waypoint.cli.caller import sudo_caller
from waypoint.cli.output import print_json, print_lines, terminal_width, wants_colour, warn_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import UnknownName, UsageProblem
from waypoint.model.profile_facts import ProfileFacts
from waypoint.model.rendering import headed, table
from waypoint.model.verbs import Given, did_you_mean

EXIT_FAILED = 1


def list_profiles(given: Given) -> int:
    found = Client(given.text("home")).profiles()
    if given.flag("json"):
        print_json(found)
        return 0
    rows = [(one.name, " ".join(one.programs), _settings(one), one.where) for one in found]
    headings = ("PROFILE", "PROGRAMS", "HAS", "FROM")
    wrapped = frozenset({"PROGRAMS", "HAS"})
    print_lines(table(headings, rows, wrapped=wrapped, width=terminal_width(), coloured=wants_colour()))
    return 0


def _settings(one: ProfileFacts) -> str:
    if one.problem:
        return f"not used: {one.problem}"
    parts = (("variables", one.env), ("remedies", one.remedies), ("test", one.test))
    return ", ".join(word for word, part in parts if part) or "nothing"


def show(given: Given) -> int:
    one = _find(Client(given.text("home")), given.required("profile"))
    if given.flag("json"):
        print_json(one)
        return 0
    facts = [("profile", one.name), ("from", one.where), ("programs", " ".join(one.programs))]
    facts += [("variable", f"{name}={value}") for name, value in one.env.items()]
    facts += [("remedy", f"{code}: {text}") for code, text in one.remedies.items()]
    if one.test is not None:
        because = f": {one.test.because}" if one.test.because else ""
        facts.append(("test", f"tier {one.test.tier}{because}"))
    print_lines([*headed(facts), "", *one.reason.splitlines()])
    return 0


def test(given: Given) -> int:
    """Returns the exit status: 1 if a step has failed."""
    from waypoint.client.program_trial import Step, try_profile

    client, as_json = Client(given.text("home")), given.flag("json")
    one = _find(client, given.required("profile"))
    if one.test is None:
        next_step = "add a table [test] to its file"
        raise UsageProblem("test", f"the profile {one.name}", "it has no test", next_step)
    steps: list[Step] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the sessions are removed
    for step in try_profile(client, one, path=os.environ.get("PATH", os.defpath), user=sudo_caller()):
        steps.append(step)
        if not as_json:
            print_lines([f"{step.step:<12}{'ok' if step.ok else 'FAILED':<8}{step.said}"])
    if as_json:
        print_json([step._asdict() for step in steps])
    return 0 if all(step.ok for step in steps) else EXIT_FAILED


def _find(client: Client, name: str) -> ProfileFacts:
    """The profile `name`. A file with an error is reported on stderr, if it is this profile's."""
    found = client.profiles()
    for one in found:
        if one.name == name and one.problem:
            warn_lines([f"{one.where} is not used: {one.problem}"])
    for one in found:
        if one.name == name and not one.problem:
            return one
    said = f"there is no such profile{did_you_mean(name, [one.name for one in found if not one.problem])}"
    raise UnknownName("find the profile", name, said, "'waypoint profile list' lists them")
