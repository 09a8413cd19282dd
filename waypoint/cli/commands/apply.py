"""`waypoint apply`."""

import dataclasses
import os

from waypoint.cli.caller import absolute, branch_of, current_folder
from waypoint.cli.output import EXIT_INTERRUPTED, agrees, fail, note, print_json, print_lines, wants_colour, warn
from waypoint.client.history import Resolution
from waypoint.client.sdk import Client
from waypoint.model.errors import Conflicting, UsageProblem, cleaned
from waypoint.model.facts import ApplyFacts
from waypoint.model.paths import is_below, quoted, spelled
from waypoint.model.rendering import change_lines, patch_lines
from waypoint.model.verbs import Given

_RESOLUTIONS: tuple[Resolution, ...] = ("ours", "theirs", "merge")
_MOST_SHOWN = 20  # conflicts; --json has more


def run(given: Given) -> int:
    """Returns 6 if there are conflicts."""
    client, name = Client(given.text("home")), branch_of(given)
    resolution = _resolution(given, name)
    paths = [absolute(path) for path in given.texts("words")]
    if given.flag("as_patch"):
        return _print_patch(client, name, paths)
    if given.text("git_branch") is not None:
        return _commit(given, client, name, paths)
    is_dry = given.flag("dry_run")
    asks = os.isatty(0) and os.isatty(1) and not given.flag("yes") and not is_dry

    allows, history = given.flag("allow_special"), client.history
    if asks:
        plan = history.plan_apply(name, paths=paths, conflicts=resolution, allow_special=allows)
        planned = plan.facts
        if planned.conflicts or not planned.count:
            return _report(given, client, name, planned)
        _print_plan(planned)
        if not agrees(f"Apply this to {planned.base} of this machine?"):
            note("nothing was changed")
            return EXIT_INTERRUPTED
        done = client.apply(plan)
        return _conclude(client, done) if not done.conflicts else _report(given, client, name, done)
    done = history.apply(name, paths=paths, dry_run=is_dry, conflicts=resolution, allow_special=allows)
    return _report(given, client, name, done)


def _print_patch(client: Client, name: str, paths: list[str]) -> int:
    top = _repository(paths)
    found = client.history.diff(name, paths=paths or [top], patch=True, root=top)
    print_lines(patch_lines([one for one in found if not is_below(one.name, f"{top.rstrip('/')}/.git")]))
    return 0


def _commit(given: Given, client: Client, name: str, paths: list[str]) -> int:
    done = client.history.commit(name, _repository(paths), given.required("git_branch"), paths=paths)
    if given.flag("json"):
        print_json(done)
    elif done.files:
        count = f"{done.files} {'file' if done.files == 1 else 'files'}"
        print_lines([f"{done.branch}  {count} in {done.repository}"])
        note(f"see the changes: git -C {quoted(done.repository)} show {quoted(done.branch)} --")
    else:
        note(f"nothing to commit: {name} has changed no file that git tracks in {done.repository}")
    return 0


def _repository(paths: list[str]) -> str:
    """The root of the git repository that contains the first path, else the working directory; "/" if there is none."""
    folder = paths[0] if paths else current_folder()
    while folder != "/" and not os.path.lexists(f"{folder}/.git"):
        folder = os.path.dirname(folder)
    return folder


def _resolution(given: Given, name: str) -> Resolution:
    chosen = [one for one in _RESOLUTIONS if given.flag(one)]
    if len(chosen) > 1:
        both = " and ".join(f"--{one}" for one in chosen)
        raise UsageProblem("apply", name, f"{both} exclude each other", "leave out one of them")
    return chosen[0] if chosen else "refuse"


def _report(given: Given, client: Client, name: str, found: ApplyFacts) -> int:
    as_json = given.flag("json")
    if found.conflicts:
        return _fail(client, name, found, given)
    if as_json:
        print_json(found)
        return 0
    _print_plan(found)
    return _conclude(client, found)


def _print_plan(found: ApplyFacts) -> None:
    print_lines(change_lines(found.changes, coloured=wants_colour(), with_total=False))
    if found.count > len(found.changes):
        print_lines([f"and {found.count - len(found.changes)} more"])
    warn("this machine had changed it, too", found.replaced)


def _conclude(client: Client, found: ApplyFacts) -> int:
    if not found.count:
        note("nothing to apply: this machine has all changes of these files")
    elif found.operation is None:
        note("nothing was changed (--dry-run)")
    else:
        undo = spelled(client.home, "undo", str(found.operation))
        note(f"changed {found.count} {'file' if found.count == 1 else 'files'}; to take that back: {undo}")
    return 0


def _fail(client: Client, name: str, found: ApplyFacts, given: Given) -> int:
    warn("conflict", [f"{cleaned(one['path'])}: {one['said']}" for one in found.conflicts[:_MOST_SHOWN]])
    if found.conflict_count > _MOST_SHOWN:
        note(f"and {found.conflict_count - _MOST_SHOWN} more conflicts")
    said = f"{found.conflict_count} {'conflict' if found.conflict_count == 1 else 'conflicts'}; nothing was changed"
    next_step = "resolve these conflicts, or name other files: -- PATH..."
    if any(one["can_choose"] for one in found.conflicts):
        look = spelled(client.home, "diff", name, "--patch")
        decide = "decide with --ours or --theirs" if given.flag("merge") else "decide with --ours, --theirs or --merge"
        if not all(one["can_choose"] for one in found.conflicts):
            decide = "resolve those that --ours, --theirs and --merge cannot decide"
        next_step = f"see the differences: {look}; then {decide}, or name files: -- PATH..."
    repository = next(
        (top for top, inside, _ in (one["path"].partition("/.git/") for one in found.conflicts) if inside), ""
    )
    if repository:
        commit = spelled(client.home, "apply", name, "--git-branch", "NEW", "--", repository)
        next_step += f"; or bring the files out as a commit: {commit}"
    error = Conflicting("apply", name, said, next_step)
    return fail(error, as_json=given.flag("json"), beside=dataclasses.asdict(found))
