"""Files with all that belongs to them as one stream of bytes, made and unpacked on both sides of the socket alike."""
