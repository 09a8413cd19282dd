"""Starting a command-line agent, or any other program, in the foreground of a session's shell."""

from waypoint.model.errors import StateConflict, UsageProblem
from waypoint.model.requests import AdoptRequest
from waypoint.model.session_facts import SessionFacts
from waypoint.service import sessions
from waypoint.service.home import Home
from waypoint.session.birth import rights
from waypoint.terminal.hooks.shell_watch import NotAtPrompt
from waypoint.terminal.shell.again import quoted_if_needed

_PROMPT_S = 10.0


async def adopt(home: Home, branch: str, request: AdoptRequest) -> SessionFacts:
    """Type the program's command line at the prompt of the session's shell, and return at once. Raises StateConflict if
    the shell does not come to its prompt.
    """
    live, on = home.sessions.get(branch), f"branch {branch}"
    rights.check_own(home.sessions.resources, live.record.row.setting.user, "start a program on", on)
    words = [word.encode() for word in request.argv]
    text = " ".join(quoted_if_needed(word, is_first=not place) for place, word in enumerate(words))
    if not text.isprintable():
        said = "it has characters that cannot be typed, such as a line break"
        raise UsageProblem("start", on, said, "write a script, and start this")
    try:
        await live.shell.watch.wait_first(_PROMPT_S)
        await live.shell.watch.wait_prompt(_PROMPT_S, after=1)
    except NotAtPrompt as error:
        raise StateConflict("start a program on", on, str(error), f"look at it: waypoint attach {branch}") from error
    live.note_command(text)
    live.terminal.typed.write(text.encode() + b"\r")
    return await sessions.session(home, branch)
