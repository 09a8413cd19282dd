"""Dumping and restoring processes with CRIU, workload profiles, and the checks before a dump."""
