"""`fork ... --keep NEW --score CMD -- CMD`: runs the command in all forks, and keeps the one with the best score."""

import contextlib
from collections.abc import Sequence

from waypoint.cli.fast.in_each import EXIT_ONE_FAILED, Command, Fleet, Member, run_in_each
from waypoint.cli.output import note, print_json, print_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import StateConflict, UnknownName, WaypointError
from waypoint.model.paths import spelled


def check_free(home: str, name: str) -> None:
    """Raise StateConflict if there is a checkpoint or branch `name`."""
    with contextlib.suppress(UnknownName):
        if name in Client(home).history.show(name).names:
            said, next_step = "there is a checkpoint or branch of this name", "choose another name for --keep"
            raise StateConflict("create", f"checkpoint {name}", said, next_step, code="name-taken")


def keep_best(
    home: str,
    origin: str,
    members: Sequence[Member],
    command: Command,
    keep_and_score: tuple[str, str],
    *,
    as_json: bool,
) -> int:
    """`origin`: the name that was forked. Returns the exit status: 1 if no fork has a score. With `as_json`, the
    commands' output is not printed.
    """
    keep, score = keep_and_score
    if as_json:
        Fleet(members).drive(lambda branch, data: None)
    else:
        run_in_each(members, as_json=False)
    succeeded = {number: member for number, member in enumerate(members, 1) if member.exit == 0}
    found = {number: member.facts for number, member in succeeded.items()}
    scores = _scores(home, found, command._replace(words=[score]))
    if not scores:
        note(f"no session has a score; all sessions are still running: {spelled(home, 'ps')}")
        return EXIT_ONE_FAILED
    best = max(scores, key=lambda branch: scores[branch])
    client = Client(home)
    made = client.session(best).checkpoint(keep, message=f"score {scores[best]:g}", force=False)
    for member in members:
        if member.branch != best and member.is_started:
            try:
                client.session(member.branch).stop()
            except WaypointError as error:
                note(f"cannot end {member.branch}: {error.said}")
    if as_json:
        print_json({"name": keep, "branch": best, "capture": made.capture, "scores": scores})
    else:
        print_lines([f"{keep}  {best}  score {scores[best]:g}"])
        apply = f"bring them onto this machine: {spelled(home, 'apply', keep)}"
        note(f"see its changes: {spelled(home, 'diff', origin, keep)}; {apply}")
    return 0


def _scores(home: str, forks: dict[int, dict[str, object]], score: Command) -> dict[str, float]:
    """Run the command `score` in the forks; return the scores by branch, of those forks that have printed one."""
    outputs = {str(fork["branch"]): bytearray() for fork in forks.values()}
    members = [Member(home, fork, score.request_for(number, fork)) for number, fork in forks.items()]
    Fleet(members).drive(lambda branch, data: outputs[branch].extend(data))
    found: dict[str, float] = {}
    for member in members:
        words = outputs[member.branch].decode(errors="replace").split()
        if member.exit == 0 and words:
            try:
                found[member.branch] = float(words[-1])
            except ValueError:
                note(f"{member.branch}: its score is not a number: {words[-1]}")
    return found
