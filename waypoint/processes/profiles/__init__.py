"""Workload profiles: what one kind of program needs to be captured, restored and started again, as data."""
