"""Process images: finding and installing CRIU, its RPC, dump and restore."""
