"""Captures in the store: work for the store's own process, what the process does, and how the daemon runs it."""
