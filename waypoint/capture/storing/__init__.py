"""Captures in the store: orders for the store's own process, their execution, and the link to the daemon."""
