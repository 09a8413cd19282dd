"""Walls around a session: the system calls that are refused inside, and what is masked of /proc and /sys."""
