"""Answers of the control interface about processes, workload profiles and the disk (facts.py has all others)."""
