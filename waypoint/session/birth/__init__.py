"""Starting sessions: with a new shell, or with the processes of a capture."""
