"""Files as one stream of bytes: waypoint/parcel."""
