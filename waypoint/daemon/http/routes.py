"""The table of everything that the control interface can be asked; docs/protocol.md, section 1.

A new route is a record for what it takes (`waypoint.model`), a function (`waypoint.service`) and a row here. What is
asked of sessions all day is loaded at the start, the rest when it is first asked for.
"""

from waypoint.daemon.http import openapi
from waypoint.daemon.http.route import MAX_ATTACHED_BYTES, MAX_EXEC_BODY_BYTES, Route, Routes
from waypoint.service import captures, home, sessions

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
    Route("POST", "/v1/stops", sessions.stop_several, "End several sessions, as one operation"),
    Route("POST", f"{_SESSION}/checkpoint", captures.checkpoint, "Capture the session, which goes on, and name that"),
    Route(
        "POST",
        f"{_SESSION}/checkpoint/attached",
        "service.attached.layer_calls:checkpoint_with",
        "The same, with files and folders attached that the body has",
        body_limit=MAX_ATTACHED_BYTES,
    ),
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
    Route("GET", "/v1/captures", "service.history:log", "Captures from a name back, or all", wrap="captures"),
    Route("GET", "/v1/captures/{name}", "service.history:show", "One capture", wrap="capture"),
    Route(
        "GET",
        "/v1/captures/{name}/layers",
        "service.attached.layer_calls:layers",
        "What is attached to a capture",
        wrap="layers",
    ),
    Route(
        "POST",
        "/v1/captures/{name}/layers",
        "service.attached.layer_calls:attach",
        "Attach files and folders that the body has to a name: it stands for a new capture with them",
        body_limit=MAX_ATTACHED_BYTES,
    ),
    Route(
        "GET",
        "/v1/captures/{name}/layers/{kind}",
        "service.attached.layer_calls:layer",
        "An attached file or folder, as a parcel",
    ),
    Route("GET", "/v1/branches", "service.history:branches", "Branches, live or not", wrap="branches"),
    Route("GET", "/v1/names", "service.history:names", "Branches and checkpoints, in short", wrap="names"),
    Route("POST", "/v1/branches/{branch}/rename", "service.history:rename", "Rename a branch"),
    Route("POST", "/v1/names/remove", "service.history:remove", "Remove names, all or none"),
    Route("GET", "/v1/operations", "service.history:operations", "The operation log", wrap="operations"),
    Route("POST", "/v1/operations/undo", "service.history:undo", "Take an operation back"),
    Route(
        "POST",
        "/v1/diffs",
        "service.comparing.diffs:diff",
        "What two captures or sessions differ in, or one and the machine",
    ),
    Route("POST", "/v1/applies", "service.durable.applying:apply", "Put what a branch has changed onto the machine"),
    Route("GET", "/v1/usage", "service.usage:du", "What holds how much of the disk"),
    Route("POST", "/v1/verify", "service.durable.keeping:verify", "Look for damage in the store"),
    Route("POST", "/v1/exports", "service.durable.sending:export", "A capture with its history, as one file"),
    Route("POST", "/v1/imports", "service.durable.receiving:import_", "Captures from such a file"),
    Route("POST", "/v1/evict", "service.durable.keeping:evict", "Remove the content of captures that are in the store"),
    Route("POST", "/v1/gc", "service.housekeeping:gc", "Remove what nothing keeps, and give its space back"),
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
        "POST",
        "/v1/files/{name}/read",
        "service.carrying.file_streams:read_file",
        "A file of a capture or a live session",
    ),
    Route(
        "POST", "/v1/files/{name}/fetch", "service.carrying.file_streams:fetch", "A file or folder of one, as a parcel"
    ),
    Route("POST", "/v1/files/{name}/put", "service.carrying.file_streams:put", "Unpack a parcel in a live session"),
    Route("POST", "/v1/mounts", "service.carrying.mounting:mount", "Mount the files of a capture on the machine"),
    Route(
        "GET",
        f"{_SESSION}/survey",
        sessions.survey,
        "Its processes, each with the tier it would reach",
        wrap="processes",
    ),
    Route(
        "GET",
        "/v1/profiles",
        "service.profiles:profiles",
        "Workload profiles that count, and what is wrong with others",
    ),
    Route(
        "POST",
        "/v1/profiles/test",
        "service.profiles:test_profiles",
        "Check a profile, and which process of a session gets which",
        wrap="matches",
    ),
    Route(
        "POST",
        "/v1/doctor",
        "service.activity:doctor",
        "Try every capability on a throw-away session",
        wrap="capabilities",
    ),
    Route("GET", "/v1/jobs", "service.activity:jobs", "Jobs that run, and those that ended lately", wrap="jobs"),
    Route("POST", "/v1/jobs", "service.activity:start_job", "Start a job", wrap="job", created=True),
    Route("GET", "/v1/jobs/{job}", "service.activity:job", "One job, with its result", wrap="job"),
    Route("POST", "/v1/jobs/{job}/cancel", "service.activity:cancel_job", "End a job before its time", wrap="job"),
    Route("GET", "/v1/events", "service.activity:events", "What happens; with `follow` from now on"),
    Route("POST", "/v1/daemon/stop", home.stop_daemon, "Stop the daemon and its supervisor; sessions go on"),
)
