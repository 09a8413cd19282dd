"""Files, mounts, file systems and block devices."""
