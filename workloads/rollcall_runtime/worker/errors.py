"""Errors whose message says what to change, so that a worker shows no traceback for them."""


class FencedError(RuntimeError):
    """Another trainer has replaced this one, which must end and not be restarted."""


class SpecError(ValueError):
    """The job's spec asks for what this container cannot do.

    `field` is the path in the RLJob, `problem` says what is wrong and what would help. A restart
    does not help, so the worker exits with BAD_CONFIG.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type["SpecError"], tuple[str, str]]:
        """Exceptions of two arguments cannot be pickled without this."""
        return SpecError, (self.field, self.problem)
