"""Exec: running a client's command line in the session's own shell.

The daemon and the shell's hooks talk by marks (docs/protocol.md, section 3). A command survives its daemon: its record
is kept in a file, from which the next daemon continues.
"""
