"""What a session's own processes may ask for: the verbs of the command line on the session's own branch."""
