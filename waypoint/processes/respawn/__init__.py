"""The manifest of a session's programs, to start them again."""
