"""Live sessions: starting, capturing, restoring, forking, adopting and ending them."""
