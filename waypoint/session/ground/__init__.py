"""What a session stands on: the host's mounts as its base, the skeleton over it, places of its own, and the plan."""
