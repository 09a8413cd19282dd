"""The daemon process: its supervision, its control socket, and HTTP in front of the service."""
