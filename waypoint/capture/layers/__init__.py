"""The layers of a capture, one module each; `table` lists them in their order."""
