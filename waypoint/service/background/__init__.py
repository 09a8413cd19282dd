"""Background work of the daemon (jobs, events, growing the pool), and reports of unexpected exceptions."""
