"""Starting sessions: plans of mounts and processes, which are plain values, and the launcher that executes them."""
