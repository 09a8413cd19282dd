"""Network namespaces and sockets."""
