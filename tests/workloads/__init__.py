"""Real programs in sessions: captured while they work, restored and forked."""
