"""What the supervisor tells its owner when something cannot be done."""


class SupervisorError(Exception):
    """A failure in words for the user; it becomes an EmbeddedError on the owner's side."""
