"""Run in a session before and after it is captured: its own hooks, and what workload profiles want to be run."""
