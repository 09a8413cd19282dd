"""Processes: creating and observing them, their control groups and namespaces."""
