"""The peers of the worker's benchmark: one small program each, run in a virtual environment of its own."""
