"""Container images as folders: OCI image layouts and the archives of `docker save`, unpacked layer by layer."""
