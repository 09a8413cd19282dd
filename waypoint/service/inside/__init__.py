"""Requests of a session's own processes: verbs of the command line on the session's own branch."""
