"""The layers of a capture, one module each, with the same verbs; `table` lists the layers in their order."""
