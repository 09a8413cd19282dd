"""Degradations: what a capture or a restored session keeps less faithfully than possible, as data with stable codes.

The daemon makes the sentences (`text_of`) when it answers; no code reads them. `docs/conditions.py` prints
docs/conditions.md from the tables.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from waypoint.model.errors import as_text, cleaned
from waypoint.model.session_facts import ConditionFacts

_MOST_SHOWN = 3


class Condition(NamedTuple):
    """One row of the table. `text`: the sentence for people, with `{subject}` and `{detail}`. `meaning`, `remedy`: for
    docs/conditions.md. `is_usual`: it holds for most sessions, and few programs notice. Commands do not print it;
    `show` and JSON have it.
    """

    text: str
    meaning: str
    remedy: str
    is_usual: bool = False


BUILD_CRIU = (
    "Unset WAYPOINT_CRIU, if it is set, and run `sudo waypoint setup` with access to a Debian mirror, which builds "
    "Waypoint's CRIU; or install the package waypoint-criu."
)

CONDITIONS: dict[str, Condition] = {
    # The capture lacks something.
    "no-processes": Condition(
        "without its processes: {detail}",
        "The capture has no processes. `subject`: the code of the error that prevented it, empty if the tier was "
        "requested.",
        "Remove the cause that `detail` names, and make a checkpoint again.",
    ),
    "program-not-restartable": Condition(
        "cannot be started again: {subject}: {detail}",
        "A program that ran will not be started again from this capture, which has no processes.",
        "Start it by hand after the restore.",
    ),
    "programs-omitted": Condition(
        "cannot be started again: {subject} more: there are too many",
        "The capture keeps the command lines of 256 programs only. `subject`: the number of the others.",
        "Start them by hand after the restore.",
    ),
    "no-shared-memory": Condition(
        "{subject}: its files are not in the capture: {detail}",
        "The files in the session's /dev/shm could not be copied.",
        "Remove the cause that `detail` names, and make a checkpoint again.",
    ),
    "processes-lost": Condition(
        "its processes: they were in memory, and not yet on the disk, when the machine stopped",
        "The machine stopped, without an orderly end of the daemon, within some seconds of the checkpoint. The files "
        "are kept.",
        "Restore the files: `waypoint restore NAME -b BRANCH --only files`; or restore an earlier checkpoint.",
    ),
    "shell-not-written": Condition(
        "the shell's variables, functions and folder: the shell could not write them (a full disk, or ulimit -f)",
        "The state of the shell is not in the capture.",
        "Free disk space or raise `ulimit -f` in the shell, and make a checkpoint again.",
    ),
    "lock-not-copied": Condition(
        "the lock on {subject} is not in copies, because the file is also mapped; copies may lose what they write "
        "under this lock: end the transaction first",
        "A copy of the process does not hold the file lock.",
        "End the program's transaction before the checkpoint.",
    ),
    "shell-renewed": Condition(
        "the {subject} was lost, and a new one with the state of its last prompt has replaced it: {detail}",
        "The shell did not serve commands any more (it ignored all signals at a timeout, or its hooks were disabled). "
        "Waypoint has killed it and started a new one, which has the variables, functions, options and folder of the "
        "last prompt. Programs that ran in the background continue, but are not jobs of the new shell.",
        "None is needed. Set again what the last command has set.",
    ),
    "nested-shell": Condition(
        "{subject}: a shell within the shell: after a restore it has no ^C and no jobs; leave it and start it again",
        "An interactive shell inside the session's shell loses its controlling terminal in a restore.",
        "Leave the inner shell before the checkpoint, or after the restore, and start it again.",
    ),
    "host-ports": Condition(
        "{subject} of the host's network: copies cannot have these ports, and a restore fails while another program "
        "has them",
        "The session shares the host's network and has ports there.",
        "Use a session with a network of its own (`--net private`).",
    ),
    "host-connections": Condition(
        "{subject} of the host's network: these connections are closed in copies, whose programs must connect again",
        "The session shares the host's network and has connections there.",
        "Use a session with a network of its own (`--net private`).",
    ),
    "outside-connection": Condition(
        "{subject}: the connection to another machine is reset in copies; this session keeps it",
        "A TCP connection to another machine cannot exist twice.",
        "Let the program connect again in the copy.",
    ),
    "outside-socket": Condition(
        "{subject}: its connection to a program outside the session is closed in copies; this session keeps it",
        "A connection through a Unix socket to a program outside the session cannot exist twice.",
        "Let the program connect again in the copy.",
    ),
    "unaccepted-connections": Condition(
        "{subject}: {detail} connections that no program has accepted yet are not in copies: their clients get no "
        "answer there",
        "The server had not accepted these connections when it was captured. `detail`: their number.",
        "Let the clients connect again in the copy.",
    ),
    "unsent-data": Condition(
        "{subject}: up to {detail} bytes, which were not sent yet when a program closed this connection, are not in "
        "copies: the program that reads them gets a reset there",
        "A program had closed a TCP connection within the session, and the program at the other end had not read "
        "enough to leave room for all data. `detail`: the number of bytes; the kernel may still send some of them.",
        "Let the reading program read on before the checkpoint; this session keeps the data.",
    ),
    "unread-datagrams": Condition(
        "{subject}: datagrams that no program has read yet are not in copies",
        "UDP data that had arrived at the port was not yet read.",
        "Let the sender repeat them.",
    ),
    "unread-notices": Condition(
        "{subject}: notices about watched files (inotify) that the process has not read yet are not in copies",
        "A program watches files (inotify, fanotify) and had not read all notices.",
        "Let the program scan its files again.",
    ),
    "pending-error": Condition(
        "{subject}: an error of this socket that its program has not seen yet is not in copies",
        "A connection was refused or reset, or a message could not be delivered, and the program had not asked yet. In "
        "a copy a refused connection looks connected, and a reset one ended.",
        "Let the program connect again in the copy.",
    ),
    "urgent-data": Condition(
        "{subject}: urgent data (MSG_OOB) that its program has not read yet, and the data after it, may not be in "
        "copies",
        "CRIU reads the unread data of a connection only up to its urgent byte.",
        "Let the program read the data before the checkpoint.",
    ),
    "datagram-sender": Condition(
        "{subject}: unread datagrams have no sender in copies, unless it has a path and is connected, and cannot be "
        "answered",
        "CRIU puts datagrams back by the socket that is connected to the receiver, or by one without a name.",
        "Let the sender repeat them.",
    ),
    "timer-overruns": Condition(
        "{subject}: the number of expiries of a timer (timer_getoverrun) whose signal waits begins at 0 in copies",
        "A program blocks the signal of a periodic timer, which has expired meanwhile.",
        "None is needed, unless the program counts the expiries.",
    ),
    "timer-of-day": Condition(
        "{subject}: a timer (timer_create) for a time of day expires later in copies, by the age of the copy",
        "A program has a timer on CLOCK_REALTIME. The kernel does not show whether it was set to a time of day or to a "
        "duration; copies take it for a duration.",
        "Let the program set the timer again in the copy.",
        is_usual=True,
    ),
    "clocks-restart": Condition(
        "{subject}: in copies, the age of processes and the processor time that they have used begin at 0",
        "The kernel lets nobody set the start time and the processor time of a process. ps(1), getrusage(2) and "
        "CLOCK_PROCESS_CPUTIME_ID show it. `subject`: up to three of the programs besides the session's shell, and the "
        "number of the others.",
        "None is needed, unless a program compares these times with former ones.",
        is_usual=True,
    ),
    "processor-limit": Condition(
        "{subject}: in copies, the processor time for its limit of {detail} s (ulimit -t) begins at 0",
        "The kernel lets nobody set the processor time that a process has used.",
        "Lower the limit in the copy (prlimit).",
    ),
    "peer-pid": Condition(
        "{subject}: in copies, it sees another process at the other end of this Unix connection (SO_PEERCRED)",
        "A client sees itself in place of the server. A server sees its client, unless the process that connected has "
        "ended. The user and the group are those of the client.",
        "None is needed, unless the program asks again who is at the other end.",
        is_usual=True,
    ),
    "folder-notices": Condition(
        "{subject}: copies get no notices (F_NOTIFY) about {detail}",
        "CRIU does not keep that a program watches a folder by dnotify.",
        "Start the program again in the copy, or let it watch by inotify.",
    ),
    "message-queues": Condition(
        "the POSIX message queues {subject} are not in copies",
        "CRIU does not keep POSIX message queues, not even those that no process has open. `subject`: up to three of "
        "them, and the number of the others.",
        "Let the programs make them again in the copy, or remove them (mq_unlink).",
    ),
    "unnamed-file": Condition(
        "{subject}: copies cannot give a name to a file without a name (O_TMPFILE) in {detail}",
        "CRIU restores such a file as one that was removed, which linkat(2) refuses.",
        "Let the program name the file, or close it, before the checkpoint.",
    ),
    "semaphore-undo": Condition(
        "{subject}: in copies, a semaphore that it holds (SEM_UNDO) stays taken if it is killed",
        "The kernel shows nobody the undo values of System V semaphores.",
        "Start the program again in the copy.",
    ),
    "device-numbers": Condition(
        "{subject}: files have other device numbers in copies, where it knows no owner of a file any more",
        "fakeroot recognizes files by device and inode number. A package that is built across a restore would have "
        "wrong owners.",
        "Let fakeroot end before the checkpoint, or start it again in the copy.",
    ),
    "mapped-file-changed": Condition(
        "{subject}: it has mapped {detail}, which was overwritten since; copies get the new content, and may crash",
        "A program still has the former content of a file of the base in its memory (mmap), for example a library. The "
        "session has written to that file in place.",
        "Start the program again before the checkpoint. Replace such files by renaming a new one.",
    ),
    "setting-lost": Condition(
        "{subject}: {detail}",
        "A setting of a restored process, which CRIU's images lack, could not be kept or made again. `detail`: its "
        "name, and the reason.",
        "Let the program make the setting again.",
    ),
    "hook-failed": Condition(
        "the hook {subject} {detail}",
        "A hook of the session failed; the operation continued.",
        "Repair the hook in the session's folder /etc/waypoint/hooks.",
    ),
    "hooks-not-run": Condition(
        "the hooks of {subject} were not run: {detail}",
        "Hooks of the session were not run; the operation continued. `subject`: the moment, such as pre-checkpoint.",
        "Remove the cause that `detail` names.",
    ),
    "programs-ended": Condition(
        "CRIU was killed while it captured the session, and these programs have ended since: {subject}",
        "Something killed CRIU (for example the kernel, for lack of memory), which may end the program it works on.",
        "Start the programs again, or restore an earlier checkpoint.",
    ),
    # The restored session lacks something that the capture has.
    "processes-not-restored": Condition(
        "its processes were not restored, and its programs were started again: {detail}",
        "The capture has processes, but they cannot be restored here: no CRIU works, the kernel or the processor is "
        "another one, or CRIU has failed twice. `subject`: the code of the error.",
        "Remove the cause that `detail` names, and restore again; `--tier live` fails instead.",
    ),
    "lock-lost": Condition(
        "the lock on {subject} was lost",
        "A restored process does not hold the file lock that it held when it was captured.",
        "Let the program take the lock again.",
    ),
    "base-files-changed": Condition(
        "has files of the capture in place of the machine's, which have changed: {subject}",
        "Files of the base that processes of the capture have open or mapped have changed on the machine (an upgrade, "
        "another machine). This session, and what is captured in it, has the former versions; programs that it starts "
        "use them, too. `subject`: up to three of the files, and the number of the others.",
        "To use the machine's versions, restore without processes: `--tier respawn`.",
    ),
    "inodes-changed": Condition(
        "files that its programs have open have other inode numbers than before: {subject}",
        "The files are new copies: the pool is no btrfs, or the capture came from the store and had very many files. "
        'Programs that compare the numbers take these files for replaced ones: SQLite fails with "attempt to write a '
        'readonly database". `subject`: up to three of the files, and the number of the others.',
        "Have the programs open these files again. To avoid it, set up the home where it gets a btrfs pool: "
        "`waypoint doctor` tells what is missing.",
    ),
    "base-files-not-kept": Condition(
        "needs the machine's present files of the base, which are not kept with it: {subject} ({detail})",
        "Files of the base that processes of the capture have open or mapped could not be kept with the capture. If "
        "the machine changes them, the processes cannot be restored. This is known some milliseconds after the answer: "
        "`checkpoint --wait` and `show` report it. `subject`: up to three of the files, and the number of the others; "
        "empty: all. `detail`: the reason, of the first.",
        "Remove the cause that `detail` names, and take another checkpoint.",
    ),
    "base-files-not-capable": Condition(
        "has former files of the base without their file capabilities: {subject}",
        "The former versions of these files had file capabilities, which are not kept. Restored processes keep their "
        "rights; programs that are started anew from these files lack them. `subject`: up to three of the "
        "files, and the number of the others.",
        "Give them the capabilities again (setcap), or restore without processes: `--tier respawn`.",
    ),
    "limit-lowered": Condition(
        "{subject}: the hard limit is {detail}: the daemon may not raise it",
        "A hard limit (setrlimit) of the restored processes is lower than before. `detail`: both values.",
        "Start the daemon with a higher limit.",
    ),
    "clock-went-on": Condition(
        "its monotonic clock went on for {detail} since the checkpoint",
        "The session is a standby (`waypoint setup --standbys`): it was restored and stood frozen before the request. "
        "Its monotonic clock went on meanwhile, so its waits with a timeout end earlier. `detail`: for how long.",
        "If that matters to a program: `waypoint setup --standbys 0`.",
    ),
    "port-moved": Condition(
        "port {subject}: its number on this machine is in use; it has another one: {detail}",
        "A published port of the session has another number on this machine than before, because that is in use. "
        "`detail`: the number before, and the number now.",
        "`waypoint port BRANCH` lists the ports; free the number, then stop and start the session.",
    ),
    "shell-not-restored": Condition(
        "the shell's state was not restored: {detail}",
        "The shell's variables, functions and history were not restored.",
        "Remove the cause that `detail` names, and restore again.",
    ),
    "shell-value-not-restored": Condition(
        "the shell: {detail}",
        "A part of the shell's state could not be restored.",
        "Set it by hand.",
    ),
    "replaced-files-open": Condition(
        "{detail} still uses files that were replaced or removed, and sees no change of the new ones: {subject}",
        "A restore of files alone has replaced or removed files that a running program has open or mapped, or a folder "
        "that is its working directory. The program keeps the former ones: what it writes to them is lost when it "
        "closes them. `subject`: up to three of the paths, and the number of the others. `detail`: the program and its "
        "process ids in the session.",
        "Let the program open its files again, or restart it. `waypoint restore` without `--only` restores the "
        "programs, too.",
    ),
    "bind-missing": Condition(
        "{subject}: {detail}",
        "A folder of the host that was shared with the captured session is not shared with this one.",
        "Start the session with `--bind`.",
    ),
    "program-not-started": Condition(
        "{subject}: {detail}",
        "A program of a capture without processes was not started again.",
        "Start it by hand.",
    ),
    "processes-not-kept": Condition(
        "its processes ({detail})",
        "Undo restores the session from a capture without processes.",
        "Start the programs by hand.",
    ),
    # Only some steps of an undo were carried out.
    "undo-incomplete": Condition(
        "the undo of operation {subject} is incomplete: {detail}",
        "An undo has ended or started some sessions and then failed. `subject`: the operation that it was to undo. "
        "`detail`: the reason.",
        "Undo this entry by its number, which reverses what was done.",
    ),
    # The session lacks something that the host has.
    "mount-left-out": Condition(
        "{subject} ({detail})",
        "The session does not see this mount of the host.",
        "Share a folder of it: `waypoint shell --bind HOST:PATH`.",
    ),
    "mount-gone": Condition(
        "{subject} (no longer mounted here: only the files that the session has changed exist)",
        "The captured session had an overlay over this mount, and the host no longer has the mount.",
        "Mount it again, and restore again.",
    ),
    "changes-hidden": Condition(
        "{subject} ({detail}: its changes wait)",
        "The session has changed files at this path that it does not see now; they are kept.",
        "See `detail`: usually mount or umount the file system, and start the branch again.",
    ),
    "folder-not-entered": Condition(
        "{subject} (cannot be entered: the shell started in {detail})",
        "The shell did not start in the requested folder.",
        "Name a folder that the session's user can enter.",
    ),
    "limit-not-enforced": Condition(
        "{subject}: not enforced, {detail}",
        "The host cannot enforce this limit of the session.",
        "Run on a host with the cgroup2 controllers memory, pids and cpu; for `disk` use a btrfs pool.",
    ),
    "limit-for-each-user": Condition(
        "{subject}: enforced for {detail}",
        "The host enforces the limit for each user of the session separately, not for all together.",
        "Run on a host with the cgroup2 controller pids.",
    ),
    "not-measured": Condition(
        "not measured: {detail}",
        "The size of a session or capture is not known: it has so many files, processes or memory mappings that "
        "measuring takes too long, or the measurement has failed.",
        "Ask again later, or remove the capture or the session's files.",
    ),
    # The CRIU of the machine lacks a patch of Waypoint: rows of `waypoint doctor`, never of a capture.
    "interrupted-calls": Condition(
        "system calls that wait, such as a sleep, can end early at a checkpoint and after a restore (EINTR)",
        "CRIU interrupts waiting system calls and cannot continue those with a timeout.",
        BUILD_CRIU,
    ),
    "stopped-jobs": Condition(
        "signals that wait for a stopped process can be lost, and a job that its terminal stops cannot be captured",
        "CRIU drops or delivers waiting signals of stopped processes, and does not know SIGTTIN and SIGTTOU.",
        BUILD_CRIU,
    ),
    "thread-timers": Condition(
        "programs with a timer for one thread, as profilers use, cannot be restored",
        "CRIU stores a wrong thread for timers with SIGEV_THREAD_ID.",
        BUILD_CRIU,
    ),
    "sanitizers": Condition(
        "programs with a sanitizer (TSan, ASan) or in valgrind cannot be restored",
        "CRIU needs as much free address space as such programs reserve, and the vDSO, which valgrind unmaps.",
        BUILD_CRIU,
    ),
    "restrictions": Condition(
        "sealed memory (mseal) can be changed in copies, and programs with MDWE can map executable memory there",
        "CRIU restores neither, and does not report it.",
        BUILD_CRIU,
    ),
    "memory-not-shared": Condition(
        "each fork of a large session has its own copy of all memory, and takes as long as reading it",
        "CRIU reads the memory of a capture again for each restore.",
        BUILD_CRIU,
    ),
    "removed-open-files": Condition(
        "a restore can fail if several programs have removed files open, such as libraries that an upgrade replaced",
        "CRIU makes mistakes with the names of removed files that processes have open.",
        BUILD_CRIU,
    ),
    "refused-connections": Condition(
        "a session with a connection to a program outside through a Unix socket cannot be captured",
        "CRIU refuses Unix connections that lead out of the session.",
        BUILD_CRIU,
    ),
    "touched-folders": Condition(
        "a checkpoint changes the times of folders from which open files were removed, and programs that watch these "
        "folders notice it",
        "CRIU creates and removes a temporary name for an open file of which one of several names was removed.",
        BUILD_CRIU,
    ),
    "disturbed-by-others": Condition(
        "with --net host, other users of the machine can hang or end checkpoints and restores",
        "CRIU's abstract Unix sockets accept connections and messages of everybody in the network namespace.",
        BUILD_CRIU,
    ),
    "stalled-connections": Condition(
        "after a checkpoint, and in copies, connections with much unread data can stand still for seconds",
        "CRIU makes the kernel count data as sent that was not sent, or for which the peer has no room.",
        BUILD_CRIU,
    ),
    "folders-in-proc": Condition(
        "programs whose folder is in /proc, such as /proc/1, cannot be restored",
        "CRIU stores a wrong path for folders of processes in /proc.",
        BUILD_CRIU,
    ),
    "inherited-locks": Condition(
        "locks of fcntl(2) that a process took through a descriptor of its parent are lost in a restore",
        "CRIU drops such locks, for example those of the worker processes of a server.",
        BUILD_CRIU,
    ),
    "process-controls": Condition(
        "what a process has set for itself alone (KSM, mlockall, local descriptor table) is lost in a restore",
        "CRIU drops PR_SET_MEMORY_MERGE, PR_MCE_KILL, MCL_FUTURE, PR_SET_TSC, PR_SET_SYSCALL_USER_DISPATCH and the "
        "segments of modify_ldt(2).",
        BUILD_CRIU,
    ),
    "semaphore-counters": Condition(
        "an eventfd that is a semaphore (EFD_SEMAPHORE) is a counter after a restore",
        "A read of it returns the whole counter, not 1.",
        BUILD_CRIU,
    ),
    "empty-datagrams": Condition(
        "an empty datagram that waits in a Unix socket, and those behind it, are lost in a restore",
        "CRIU takes an empty datagram for the end of a stream.",
        BUILD_CRIU,
    ),
    "unix-peers": Condition(
        "a restored program takes root, and itself, for the other end of its Unix connections (SO_PEERCRED)",
        "CRIU makes such connections, and listens, as root.",
        BUILD_CRIU,
    ),
    "half-closed-connections": Condition(
        "TCP connections of which one direction is closed can hang after a restore",
        "CRIU restores such connections with a closed window.",
        BUILD_CRIU,
    ),
    "data-in-flight": Condition(
        "a restore can fail if TCP connections have data that has not been sent",
        "CRIU lets a restored socket send while its peer does not exist yet.",
        BUILD_CRIU,
    ),
    # A base lacks something of what it was made from.
    "devices-left-out": Condition(
        "without device files, which no session can have: {subject} ({detail} in all)",
        "The container image, or the folder, has device files. A session has its own /dev.",
        "None is needed, unless a program needs that device.",
    ),
    "files-left-out": Condition(
        "{detail} files or folders that could not be read, such as {subject}",
        "The base lacks files or folders that were removed or moved while they were copied, or that cannot be read.",
        "Make the base again while no program changes these files.",
    ),
    "attributes-left-out": Condition(
        "without {detail} extended attributes that mean nothing in a session: {subject}",
        "The container image has extended attributes other than `user.`, access control lists and capabilities of "
        "files, for example those of SELinux, or has them on links.",
        "None is needed.",
    ),
    # Records of earlier versions, which had sentences only.
    "earlier": Condition(
        "{detail}", "A sentence that an earlier version of Waypoint recorded.", "Make a new checkpoint."
    ),
}
"""By code. A code never changes its meaning; new codes may be added."""


class ErrorCode(NamedTuple):
    """One row about errors. `exit`: the exit status. `meaning`, `remedy`: for docs/conditions.md."""

    exit: int
    meaning: str
    remedy: str


ERROR_CODES: dict[str, ErrorCode] = {
    "usage": ErrorCode(
        2, "The request itself is wrong: bad name, unknown option, options that exclude each other.", ""
    ),
    "unknown-name": ErrorCode(2, "No branch, checkpoint, capture or operation has this name.", "`waypoint log --all`"),
    "ambiguous": ErrorCode(2, "More than one capture id begins with these digits.", "Give more digits."),
    "no-capture": ErrorCode(2, "The branch has no capture yet.", "Make a checkpoint first."),
    "capture-removed": ErrorCode(
        2, "`waypoint gc` has removed the content of this capture.", "Choose another capture."
    ),
    "host-lacks": ErrorCode(3, "A kernel feature, a program or a permission is missing.", "`waypoint doctor`"),
    "not-allowed": ErrorCode(3, "The caller may not do this; root may, or a user whom root trusts fully.", ""),
    "criu-unusable": ErrorCode(3, "The CRIU at this path does not start or does not answer.", "`waypoint doctor`"),
    "conflict": ErrorCode(4, "The request is valid, but the present state forbids it.", ""),
    "name-taken": ErrorCode(4, "A branch or checkpoint of this name exists.", "Choose another name."),
    "port-in-use": ErrorCode(
        4, "The port of the machine that was to be published is in use.", "Choose another one, or 0 for any free one."
    ),
    "not-live": ErrorCode(4, "The branch has no running session.", "`waypoint shell BRANCH` starts one."),
    "live": ErrorCode(4, "The branch has a running session.", "Stop it, or use another branch."),
    "unreachable": ErrorCode(4, "The session runs, but the daemon cannot reach it.", "`waypoint stop BRANCH` ends it."),
    "other-user": ErrorCode(4, "The session belongs to another user.", "Name the user: `--user NAME`."),
    "shell-busy": ErrorCode(4, "The shell is not at its prompt.", "Wait, or interrupt the command."),
    "shell-lost": ErrorCode(
        125, "The shell was lost during the command, or before it; a new shell replaces it.", "Run the command again."
    ),
    "hooks-running": ErrorCode(4, "The session's hooks are running; they may not change the session.", "Wait."),
    "too-many-sessions": ErrorCode(4, "The home has as many sessions as it may have.", "Stop some."),
    "too-many-clients": ErrorCode(4, "The daemon serves as many clients as it can.", "End some, and try again."),
    "daemon-not-running": ErrorCode(4, "The daemon is not running.", "Any command that needs it starts it."),
    "daemon-stopped": ErrorCode(4, "The daemon was stopped while it served the request.", "Try again."),
    "nothing-to-undo": ErrorCode(4, "No operation is left to be undone.", "`waypoint op log`"),
    "not-undoable": ErrorCode(4, "This operation cannot be undone, for the given reason.", "`waypoint op log`"),
    "undo-expired": ErrorCode(
        4,
        "This operation cannot be undone any more: it is older than seven days, or captures for undo exceeded their "
        "budget.",
        "Keep more from now on: `waypoint setup --undo-budget SIZE`.",
    ),
    "processes-would-be-lost": ErrorCode(4, "Processes would be lost.", "Agree to that: `--lose-processes`."),
    "store-busy": ErrorCode(4, "Another process writes to the store of images.", "Try again later."),
    "store-locked": ErrorCode(
        4,
        "The store of images is encrypted, and the daemon lacks its key. Sessions, and captures outside of the store, "
        "work.",
        "`waypoint setup --unlock`; or put the key file back.",
    ),
    "wrong-key": ErrorCode(
        4, "The key file or passphrase is not that of the store.", "Use the one that `setup --encrypt` was given."
    ),
    "store-not-empty": ErrorCode(
        4,
        "The store has content that is not encrypted.",
        "Remove all names, then `waypoint gc`; or set up another home.",
    ),
    "conflicts": ErrorCode(
        6,
        "The machine's files were changed since the session has seen them, or cannot be replaced.",
        "`waypoint apply --dry-run` lists them; `--ours` or `--theirs` decides.",
    ),
    "cannot-capture": ErrorCode(5, "A part of the session cannot be captured or restored.", ""),
    "no-criu": ErrorCode(
        5, "No CRIU works on this machine, so processes cannot be captured or restored.", "`waypoint doctor`"
    ),
    "no-root": ErrorCode(
        5,
        "The home works without root, and CRIU needs root, so processes cannot be captured or restored.",
        "`sudo waypoint setup --user USER` makes a home of root that the user may use.",
    ),
    "needs-root": ErrorCode(
        3,
        "The home works without root, and this needs root: sessions of other users, `mount`, `apply`.",
        "`sudo waypoint setup --user USER`",
    ),
    "no-user-namespaces": ErrorCode(
        3,
        "The machine gives an ordinary user no user namespace, without which a home needs root.",
        "`sudo waypoint setup --user USER`",
    ),
    "base-file-refused": ErrorCode(
        5,
        "The processes have a file with a set-user-ID bit open that the machine has changed since, and sessions here "
        "have no ids of their own, in which the former file would be harmless.",
        "Restore with `--tier respawn`.",
    ),
    "other-machine": ErrorCode(
        5, "The processes were captured with another kernel, or on another processor.", "Restore with `--tier respawn`."
    ),
    "too-many-files": ErrorCode(5, "The processes have more open files than a capture can keep.", "End some of them."),
    "removed-folder": ErrorCode(5, "A process uses a removed folder that cannot be restored.", "Leave or close it."),
    "landlock": ErrorCode(
        5,
        "A process has restricted itself by Landlock, or may have done so, and a copy would not be restricted.",
        "End it, or use `--tier respawn`.",
    ),
    "narrow-limit": ErrorCode(
        5,
        "A process has reached its own hard limit of memory or open files, so CRIU has no room for its code in it.",
        "Raise the limit (prlimit), or end the process.",
    ),
    "thread-parts": ErrorCode(
        5,
        "A thread has a working directory or open files of its own (unshare with CLONE_FS, CLONE_FILES), and would "
        "share those of the first thread in a copy.",
        "End the process.",
    ),
    "no-foreground": ErrorCode(5, "The foreground group of a terminal has no process.", "Press Enter in it."),
    "too-many-watches": ErrorCode(
        5,
        "The processes of a capture watch more files (inotify) than the machine allows.",
        "Raise `fs.inotify.max_user_watches`.",
    ),
    "ports-taken": ErrorCode(5, "Another program has ports of the host's network that the processes need.", "End it."),
    "changes-host": ErrorCode(
        5,
        "A proof would change files of the host: a process has a socket, FIFO, removed file or file with a lease on a "
        "bind mount.",
        "Close it before the checkpoint.",
    ),
    "capture-too-slow": ErrorCode(
        125,
        "The files in the session's /dev/shm could not be copied in time. The session continues.",
        "End the program that holds them back, for example with leases (fcntl).",
    ),
    "images-lost": ErrorCode(
        5,
        "The images of the processes were in memory, and not yet on the disk, when the machine stopped without an "
        "orderly end of the daemon.",
        "Restore the files of the capture, or an earlier one.",
    ),
    "store-damaged": ErrorCode(10, "Stored data differs from what Waypoint wrote.", ""),
    "not-encrypted": ErrorCode(
        10,
        "The home is encrypted, and its store is not: somebody has replaced config.json.",
        "Put the store back from a backup.",
    ),
    "archive-refused": ErrorCode(
        10, "An archive is damaged, incomplete, or not as Waypoint writes it; nothing was imported.", "Export it again."
    ),
    "signature-refused": ErrorCode(
        10, "An archive is not signed with the required key.", "`waypoint export --sign KEY`"
    ),
    "image-refused": ErrorCode(10, "An image contains what no session can have, such as a device.", ""),
    "bug": ErrorCode(125, "An unexpected exception in Waypoint; the daemon's log has the traceback.", "Report it."),
    "failure": ErrorCode(125, "The request was valid, but the machine failed during it.", ""),
    "busy": ErrorCode(125, "Another program uses the database of the home.", "End that program."),
    "disk-full": ErrorCode(125, "The disk is full.", "Free space: `waypoint rm`, `waypoint gc`."),
    "disk-read-only": ErrorCode(125, "The file system is read-only.", "Make it writable; see `dmesg`."),
    "disk-failed": ErrorCode(125, "The disk has failed.", "Copy the home to another disk; see `dmesg`."),
    "out-of-memory": ErrorCode(125, "The machine has too little free memory.", "End other sessions or programs."),
    "session-ended": ErrorCode(
        125, "The session ended during the command.", "`waypoint shell BRANCH` starts it again."
    ),
    "interrupted": ErrorCode(125, "The command was interrupted (^C) before it began.", "Run it again."),
    "output-lost": ErrorCode(125, "The output of the command, or a part of it, is no longer kept.", "Run it again."),
    "connection-lost": ErrorCode(125, "The connection to the daemon was cut.", "See the error's next step."),
    "daemon-unreachable": ErrorCode(125, "The daemon does not answer.", "`waypoint daemon logs`"),
    "daemon-not-ready": ErrorCode(125, "The daemon did not start in time.", "Try again; `waypoint daemon logs`."),
}
"""The codes of errors. Besides, an error of CRIU has the code `criu-NAME` (processes/criu/cause_table.py), and exit
status 5, or 125 if another try may succeed.
"""

About = Literal["", "replaced", "ended"]


class Degradation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One degradation. `code`: a key of CONDITIONS. `subject`: the thing concerned (a program, port, mount point).
    `detail`: the reason, or a number. `about`: the state that it is about: "" the capture or the session itself,
    `replaced` or `ended` the state before.
    """

    code: str
    subject: str = ""
    detail: str = ""
    about: About = ""


def some_of(paths: Sequence[str]) -> str:
    """Up to three of the paths, and the number of the others."""
    more = f" and {len(paths) - _MOST_SHOWN} more" if len(paths) > _MOST_SHOWN else ""
    return ", ".join(paths[:_MOST_SHOWN]) + more


def degradation(code: str, subject: str = "", detail: str = "") -> Degradation:
    """A Degradation with printable subject and detail, which may come from inside a session."""
    return Degradation(code=code, subject=as_text(cleaned(subject)), detail=as_text(cleaned(detail)))


def text_of(one: Degradation) -> str:
    """The sentence for people."""
    row = CONDITIONS.get(one.code)
    text = row.text.format(subject=one.subject, detail=one.detail) if row else f"{one.code}: {one.subject} {one.detail}"
    if not one.about:
        return text
    return (
        f"the {one.about} session is kept {text}"
        if one.code == "no-processes"
        else f"of the {one.about} session: {text}"
    )


def facts_of(found: Iterable[Degradation], branch: str = "") -> list[ConditionFacts]:
    """The degradations for an answer, the usual ones last. `branch`: the branch that they concern, if the answer is
    about several.
    """
    return sorted((_facts(one, branch) for one in found), key=lambda one: one.get("usual", False))


def _facts(one: Degradation, branch: str) -> ConditionFacts:
    text = text_of(one)
    facts: ConditionFacts = {"code": one.code, "subject": one.subject, "detail": one.detail, "text": text}
    if one.code in CONDITIONS and CONDITIONS[one.code].is_usual:
        facts["usual"] = True
    if one.about:
        facts["about"] = one.about
    if branch:
        facts |= {"branch": branch, "text": f"{branch}: {text}"}
    return facts
