"""What goes wrong with the embedded server."""


class EmbeddedError(RuntimeError):
    """The embedded PostgreSQL server cannot be found, started, stopped or reached."""
