"""Objects of the kernel, compared between a session that was never captured, a captured one and its copy."""
