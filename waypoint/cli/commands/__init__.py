"""One file per verb; each has its click command as `command`."""
