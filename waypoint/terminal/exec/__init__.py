"""Exec: running a client's command line in the session's own shell.

The shell's hooks report to the daemon by marks, escape sequences in the terminal's output (docs/protocol.md, section
3). A command survives its daemon: the command's record is kept in a file, so that the next daemon can continue.
"""
