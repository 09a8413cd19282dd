"""One live session, which the daemon holds open, and the resources that all sessions of a home share."""
