"""How a session comes to life: with a new shell, or with the processes of a capture."""
