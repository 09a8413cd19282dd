"""The table of everything that the control interface can be asked; docs/protocol.md, section 1.

A new route is a record for what it takes (`waypoint.model`), a function (`waypoint.service`) and a row here.
"""

from waypoint.daemon.http import openapi
from waypoint.daemon.http.route import MAX_EXEC_BODY_BYTES, Route, Routes
from waypoint.service import activity, captures, history, home, housekeeping, sessions, usage

_SESSION = "/v1/sessions/{branch}"

ROUTES: Routes = (
    Route("GET", "/v1/status", home.status, "The daemon itself"),
    Route("GET", "/v1/strangers", home.strangers, "What names.db does not know, and what is kept", wrap="strangers"),
    Route("GET", "/v1/openapi.json", openapi.description, "This description"),
    Route(
        "GET",
        "/v1/sessions",
        sessions.sessions,
        "Live sessions; with `all` also branches that could be started again",
        wrap="sessions",
    ),
    Route(
        "POST",
        "/v1/sessions",
        sessions.start,
        "Start the branch's session, or return the live one",
        wrap="session",
        created=True,
    ),
    Route("GET", _SESSION, sessions.session, "One session", wrap="session"),
    Route("POST", f"{_SESSION}/stop", sessions.stop, "End the session"),
    Route("POST", f"{_SESSION}/checkpoint", captures.checkpoint, "Capture the session, which goes on, and name that"),
    Route(
        "POST",
        f"{_SESSION}/restore",
        captures.restore,
        "Bring a capture back in place: the session is replaced, or started",
        wrap="session",
    ),
    Route(
        "POST",
        "/v1/restores",
        captures.restore_there,
        "The same on the branch that the capture was taken on",
        wrap="session",
    ),
    Route("POST", "/v1/forks", captures.fork, "Live sessions on new branches", wrap="forks", created=True),
    Route("GET", "/v1/captures", history.log, "Captures from a name back, or all", wrap="captures"),
    Route("GET", "/v1/captures/{name}", history.show, "One capture", wrap="capture"),
    Route("GET", "/v1/branches", history.branches, "Branches, live or not", wrap="branches"),
    Route("GET", "/v1/names", history.names, "Branches and checkpoints, in short", wrap="names"),
    Route("POST", "/v1/branches/{branch}/rename", history.rename, "Rename a branch"),
    Route("POST", "/v1/names/remove", history.remove, "Remove names, all or none"),
    Route("GET", "/v1/operations", history.operations, "The operation log", wrap="operations"),
    Route("POST", "/v1/operations/undo", history.undo, "Take an operation back"),
    Route("GET", "/v1/usage", usage.du, "What holds how much of the disk"),
    Route("POST", "/v1/gc", housekeeping.gc, "Remove what nothing keeps, and give its space back"),
    Route("POST", f"{_SESSION}/attach", sessions.attach, "The terminal"),
    Route(
        "POST",
        f"{_SESSION}/exec",
        sessions.execute,
        "A command line in the session's own shell",
        body_limit=MAX_EXEC_BODY_BYTES,
    ),
    Route("POST", f"{_SESSION}/run", sessions.run, "A separate process in the session"),
    Route("POST", f"{_SESSION}/logs", sessions.logs, "The scrollback"),
    Route(
        "GET",
        f"{_SESSION}/survey",
        sessions.survey,
        "Its processes, each with the tier it would reach",
        wrap="processes",
    ),
    Route("POST", "/v1/doctor", activity.doctor, "Try every capability on a throw-away session", wrap="capabilities"),
    Route("GET", "/v1/jobs", activity.jobs, "Jobs that run, and those that ended lately", wrap="jobs"),
    Route("POST", "/v1/jobs", activity.start_job, "Start a job", wrap="job", created=True),
    Route("GET", "/v1/jobs/{job}", activity.job, "One job, with its result", wrap="job"),
    Route("POST", "/v1/jobs/{job}/cancel", activity.cancel_job, "End a job before its time", wrap="job"),
    Route("GET", "/v1/events", activity.events, "What happens; with `follow` from now on"),
    Route("POST", "/v1/daemon/stop", home.stop_daemon, "Stop the daemon and its supervisor; sessions go on"),
)
