"""Planning the mounts, ids, limits and cgroups of a session, and making what all sessions of a home share."""
