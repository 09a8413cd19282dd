"""Archives: an image with its history as one file, which is also an OCI image layout (docs/format.md)."""
