"""Starting sessions: plans of their mounts and processes as values, and the launcher process that carries them out."""
