"""Files between the machine's clients and sessions: read, copied, mounted."""
