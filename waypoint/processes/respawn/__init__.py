"""Starting again what ran: the manifest of a session's programs, and the shell text that starts them."""
