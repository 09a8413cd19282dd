"""The table of all routes of the HTTP API (docs/protocol.md, section 1).

A new route needs a record type for its request (`waypoint.model`), a function (`waypoint.service`) and a row here.
"""

from waypoint.daemon.http import openapi
from waypoint.daemon.http.route import MAX_EXEC_BODY_BYTES, Route, Routes
from waypoint.service import (
    activity,
    applying,
    captures,
    differences,
    files,
    history,
    home,
    housekeeping,
    images,
    layers,
    sessions,
    usage,
)

_SESSION = "/v1/sessions/{branch}"

ROUTES: Routes = (
    Route("GET", "/v1/status", home.status, "The daemon itself"),
    Route(
        "GET",
        "/v1/strangers",
        home.strangers,
        "Files and processes that names.db does not list; they are kept",
        wrap="strangers",
    ),
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
    Route("POST", f"{_SESSION}/checkpoint", captures.checkpoint, "Capture the session, and name the capture"),
    Route(
        "POST",
        f"{_SESSION}/restore",
        captures.restore,
        "Restore a capture on this branch: its session is replaced, or started",
        wrap="session",
    ),
    Route(
        "POST",
        "/v1/restores",
        captures.restore_there,
        "Restore a capture on the branch where it was taken",
        wrap="session",
    ),
    Route(
        "POST",
        "/v1/forks",
        captures.fork,
        "Start sessions on new branches, as copies of a capture",
        wrap="forks",
        created=True,
    ),
    Route(
        "GET", "/v1/captures", history.log, "The capture of a name and its ancestors, or all captures", wrap="captures"
    ),
    Route(
        "POST",
        "/v1/proofs",
        captures.prove,
        "Restore the processes of captures without running them, and compare them with the captures",
        wrap="proofs",
    ),
    Route("GET", "/v1/captures/{name}", history.show, "One capture", wrap="capture"),
    Route("POST", "/v1/captures/{name}/layer", layers.get_layer, "Copy an attached layer to a path on the host"),
    Route(
        "POST",
        "/v1/diffs",
        differences.diff,
        "The differences between two states: files, programs, variables of the shell",
        wrap="changes",
    ),
    Route("POST", "/v1/applies", applying.apply, "Bring a session's changes onto the machine, all or nothing"),
    Route("POST", "/v1/files/read", files.read, "The content of a file, or a tar archive of a file or folder"),
    Route("POST", "/v1/files/list", files.list_files, "The files in a folder", wrap="files"),
    Route("POST", "/v1/mounts", files.mount, "Mount a read-only view of a capture at a folder of the machine"),
    Route("POST", "/v1/mounts/remove", files.unmount, "End such a mount"),
    Route("GET", "/v1/branches", history.branches, "Branches, live or not", wrap="branches"),
    Route("GET", "/v1/names", history.names, "The names of branches and checkpoints", wrap="names"),
    Route("POST", "/v1/branches/{branch}/rename", history.rename, "Rename a branch"),
    Route("POST", "/v1/names/remove", history.remove, "Remove names, all or none"),
    Route("GET", "/v1/operations", history.operations, "The operation log", wrap="operations"),
    Route("POST", "/v1/operations/undo", history.undo, "Undo an operation"),
    Route("GET", "/v1/usage", usage.du, "The disk usage of captures and sessions"),
    Route("POST", "/v1/verify", images.verify, "Look for damage in the store of images"),
    Route("POST", "/v1/evict", images.evict, "Remove the copies of captures outside of the store of images"),
    Route("POST", "/v1/gc", housekeeping.gc, "Remove captures that are no longer needed, and left-over files"),
    Route("POST", f"{_SESSION}/attach", sessions.attach, "Attach to the session's terminal"),
    Route(
        "POST",
        f"{_SESSION}/exec",
        sessions.execute,
        "Run a command line in the session's own shell",
        body_limit=MAX_EXEC_BODY_BYTES,
    ),
    Route("POST", f"{_SESSION}/run", sessions.run, "Run a separate process in the session"),
    Route("POST", f"{_SESSION}/logs", sessions.logs, "The terminal's scrollback and further output"),
    Route(
        "GET",
        f"{_SESSION}/survey",
        sessions.survey,
        "The session's processes, each with the tier that a capture of it would reach",
        wrap="processes",
    ),
    Route("POST", "/v1/doctor", activity.doctor, "Try every capability on a temporary session", wrap="capabilities"),
    Route("GET", "/v1/criu/logs/{name}", captures.criu_log, "CRIU's log of a failed dump or restore", wrap="log"),
    Route("GET", "/v1/jobs", activity.jobs, "Running and recently ended jobs", wrap="jobs"),
    Route("POST", "/v1/jobs", activity.start_job, "Start a job", wrap="job", created=True),
    Route("GET", "/v1/jobs/{job}", activity.job, "One job, with its result", wrap="job"),
    Route("POST", "/v1/jobs/{job}/cancel", activity.cancel_job, "Cancel a job", wrap="job"),
    Route("GET", "/v1/events", activity.events, "The stored events, and with `follow` further events"),
    Route("POST", "/v1/daemon/stop", home.stop_daemon, "Stop the daemon and its supervisor; sessions continue"),
)
