"""Isolation of a session: the refused system calls, and the masked parts of /proc and /sys."""
