"""What differs between sessions, captures and the machine."""
