"""Files of captures and sessions, read and copied by the client."""
