"""The stages of requests: parts of the daemon's work that can last. cli/progress.py has a text for each."""

from enum import StrEnum


class Stage(StrEnum):
    START_DAEMON = "start-daemon"  # known to the client alone
    WAIT_TURN = "wait-turn"
    WAIT_COMMAND = "wait-command"
    WAIT_PROMPT = "wait-prompt"
    HOOK = "hook"
    COPY_MEMORY = "copy-memory"
    DUMP = "dump"
    WRITE_IMAGES = "write-images"
    COPY_FILES = "copy-files"
    LOAD = "load"
    RESTORE = "restore"
    PROVE = "prove"
    START = "start"
    END = "end"
    STORE = "store"
    COMPARE = "compare"
    EXCHANGE = "exchange"
    APPLY = "apply"
    ATTACH = "attach"
    MEASURE = "measure"
    REMOVE = "remove"
    COLLECT = "collect"
    SHRINK = "shrink"
    VERIFY = "verify"
    EVICT = "evict"
    EXPORT = "export"
    IMPORT = "import"
    UNPACK = "unpack"
    TRY = "try"
    SET_UP = "set-up"  # known to the client alone
