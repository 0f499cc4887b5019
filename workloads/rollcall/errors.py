"""The one error that the library raises."""


class RollcallError(RuntimeError):
    """What could not be done: where, what is wrong, and what to do."""
