"""Errors that a person can act on because they name the field of the job that caused them."""


class FencedError(RuntimeError):
    """Another trainer took this one's place: it must not go on, nor be restarted for it."""


class SpecError(ValueError):
    """The job's spec asks for something that this container cannot do.

    `field` is the path in the RLJob, `problem` says what is wrong and what would help. Only
    another spec (or another image) helps, so a worker that meets one exits with BAD_CONFIG.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type["SpecError"], tuple[str, str]]:
        """Pickles, which exceptions of two arguments do not by themselves."""
        return SpecError, (self.field, self.problem)
