"""Dumping and restoring processes with CRIU, workload profiles, and the checks that are made before a dump."""
