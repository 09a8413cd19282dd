"""`waypoint checkpoint`, `waypoint restore` and `waypoint fork`."""

from waypoint.cli.caller import absolute, branch_of, home_of, kinds
from waypoint.cli.fast.answers import (
    checkpoint_of,
    failed_of,
    forks_of,
    note_ports,
    session_of,
    warn_degraded,
    warn_left_out,
    warn_unlimited,
)
from waypoint.cli.output import note, print_json, print_lines, warn_lines
from waypoint.client.link import ask, quote_branch
from waypoint.client.quoting import as_json_text, exec_text
from waypoint.model.errors import UsageProblem
from waypoint.model.names import parse_name
from waypoint.model.outcomes import (
    HEADINGS,
    NOT_RUN,
    SHORT,
    is_proved,
    point_line,
    proof_lines,
    replaced_lines,
    status_of,
)
from waypoint.model.verbs import LIMIT_BOUNDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIG_IGN, SIGINT, default_int_handler, getsignal, signal

    from waypoint.model.verbs import Given
else:
    from _signal import SIG_IGN, SIGINT, default_int_handler, getsignal, signal


def checkpoint(given: "Given") -> int:
    name = given.text("name")
    body: dict[str, object] = {
        "name": None if name is None else parse_name(name),
        "message": as_json_text(given.text("message") or ""),
        "tier": given.text("tier") or "auto",
        "force": given.flag("force"),
        "park": given.flag("park"),
    }
    if given.texts("attach"):
        body["attach"] = kinds(given.texts("attach"), "attach", absolute)
    for option in ("prove", "wait", "anew"):
        if given.flag(option):
            body[option] = True
    target = f"/v1/sessions/{quote_branch(branch_of(given))}/checkpoint"
    made = checkpoint_of(ask(home_of(given), "POST", target, body, may_repeat=False))
    if given.flag("json"):
        print_json(made)
        return status_of(made)
    capture, paused_ms = str(made["capture"])[:SHORT], made["paused_ms"]
    proved = "  proved" if is_proved(made) else ""
    pause = "nothing has changed since this capture" if made.get("reused") else f"paused {paused_ms:.0f} ms"
    print_lines([f"{made['name']}  {capture}  {made['tier']}  {pause}{proved}"])
    warn_degraded(made)
    warn_lines(proof_lines(made))
    return status_of(made)


def point(given: "Given") -> int:
    body: dict[str, object] = {"label": as_json_text(given.text("label") or "")}
    path = given.text("conversation")
    if path is not None:
        from waypoint.client.rewinding import describe

        try:
            body["conversation"] = describe(absolute(path))
        except OSError as error:
            said = error.strerror or str(error)
            raise UsageProblem("note", path, said, "name the file of the agent's conversation") from error
    target = f"/v1/sessions/{quote_branch(branch_of(given))}/points"
    made = checkpoint_of(ask(home_of(given), "POST", target, body, may_repeat=False))
    if given.flag("json"):
        print_json(made)
        return 0
    print_lines([point_line(made)])
    warn_degraded(made)
    return 0


def _asked(given: "Given") -> "dict[str, object]":
    """The fields of `restore` and `fork` that are sent only if their options are given."""
    items = given.texts("attach_at")
    asked: dict[str, object] = {"attach_at": kinds(items, "attach-at", as_json_text)} if items else {}
    return asked | ({"tier": given["tier"]} if given["tier"] is not None else {})


def restore(given: "Given") -> int:
    home, name, new = home_of(given), parse_name(given.required("name")), given.text("new")
    if new is None:
        # Without --branch the daemon chooses: it knows on which branch NAME was taken.
        target = "/v1/restores" if given["branch"] is None else f"/v1/sessions/{quote_branch(branch_of(given))}/restore"
        body: dict[str, object] = {"name": name, "only": given["only"], "lose_processes": given.flag("lose_processes")}
        body |= _asked(given)
        session = session_of(ask(home, "POST", target, body, may_repeat=False))
    else:
        _check_beside(given)
        body = {"name": name, "branches": [parse_name(new)], **_asked(given)}
        (made,) = forks_of(ask(home, "POST", "/v1/forks", body, may_repeat=False))
        session = session_of(made)
    warn_left_out(session)
    if given.flag("json"):
        print_json(session)
    else:
        print_lines([str(session["branch"])])
        warn_lines(replaced_lines(session))
        warn_degraded(session)
    return 0


def _check_beside(given: "Given") -> None:
    """Raise UsageProblem for an option that does not go with --new."""
    on = f"--new {given['new']}"
    if given["branch"] is not None:
        said = "--branch names an existing branch whose session is replaced, --new a branch that is created"
        raise UsageProblem("restore with", on, said, "leave out one of them")
    if given["only"] is not None:
        next_step = f"to start a branch from the files only: waypoint shell {given['new']} --from {given['name']}"
        raise UsageProblem("restore with", on, "--only cannot be combined with --new", next_step)


def fork(given: "Given") -> int:
    """Returns the exit status: 1 if the command failed in one of the forks."""
    home, words = home_of(given), given.texts("words")
    if words:
        exec_text(words)  # raises, before anything is forked, if the words cannot be sent
    keep, score = given.text("keep"), given.text("score")
    _check_fork(given)
    if keep is not None:
        from waypoint.cli.fast.best import check_free

        check_free(home, keep)  # before the command has run, perhaps for hours
    answer = _ask_for_forks(home, _fork_body(given))
    made = forks_of(answer)
    forks = [_facts_of(one) for one in made]
    warn_degraded(*map(session_of, made))
    warn_unlimited([session_of(one) for one in made], [name for name in LIMIT_BOUNDS if given[name] is not None])
    if not given.flag("json"):
        for one in made:
            note_ports(session_of(one), str(one["branch"]))
    if words:
        from waypoint.cli.fast.in_each import Command, members_of, run_in_each

        timeout = {"timeout_s": given["timeout"]} if given["timeout"] is not None else {}
        command = Command(words, {"user": session_of(made[0]).get("user"), **timeout})
        members = members_of(home, forks, failed_of(answer), command)
        if keep is not None and score is not None:
            from waypoint.cli.fast.best import keep_best

            return keep_best(home, given.required("name"), members, command, (keep, score), as_json=given.flag("json"))
        return run_in_each(members, as_json=given.flag("json"))
    if given.flag("json"):
        print_json([one | NOT_RUN for one in forks])
    else:
        print_lines([str(one["branch"]) for one in forks])
    return 0


def _check_fork(given: "Given") -> None:
    """Raise UsageProblem for options of `fork` that do not go together."""
    words, keep, score = given.texts("words"), given.text("keep"), given.text("score")
    if (keep is None) != (score is None) or (keep is not None and not words):
        said = "--keep and --score work only together, and with a command"
        raise UsageProblem("fork", given.required("name"), said, "see 'waypoint fork --help'")
    if given["timeout"] is not None and not words:
        raise UsageProblem("use", "--timeout", "it works with a command only", "give the command after '--'")
    if keep is not None:
        parse_name(keep)


def _fork_body(given: "Given") -> "dict[str, object]":
    prefix = given.text("prefix")
    return {
        "name": parse_name(given.required("name")),
        "branches": [parse_name(branch) for branch in given.texts("branches")],
        "count": given["count"],
        "prefix": None if prefix is None else parse_name(prefix),
        **({"partial": True} if given.texts("words") else {}),
        **{name: given[name] for name in LIMIT_BOUNDS if given[name] is not None},
        **_asked(given),
    }


def _ask_for_forks(home: str, body: "dict[str, object]") -> object:
    """Ask for the sessions. After a Ctrl-C, wait for the answer, end the sessions that were started, and raise
    KeyboardInterrupt; after a second one, raise it at once.
    """
    pressed: list[int] = []

    def note_press(number: int, frame: object) -> None:
        pressed.append(number)
        signal(SIGINT, default_int_handler)
        note("the sessions that start are being ended; Ctrl-C again leaves them as they are: waypoint ps")

    before = getsignal(SIGINT)
    if before != SIG_IGN:
        signal(SIGINT, note_press)
    try:
        answer = ask(home, "POST", "/v1/forks", body, may_repeat=False)
        if pressed:
            from waypoint.cli.fast.in_each import discard

            discard(home, [str(one["branch"]) for one in forks_of(answer)])
    finally:
        signal(SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
    return answer


def _facts_of(made: "dict[str, object]") -> "dict[str, object]":
    """What `--json` prints about a fork, apart from the result of the command."""
    session = session_of(made)
    return {
        **{key: made[key] for key in ("branch", "pid", "ms")},
        **{key: session.get(key) for key in (*HEADINGS, "ports")},
    }
