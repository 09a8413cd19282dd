"""HTTP over the control socket: connections, requests, routes, streams."""
