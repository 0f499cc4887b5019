"""Requests that are refused."""

TOO_LONG = "context_length_exceeded"  # OpenAI's code, by which clients shorten what they send


class BadRequestError(ValueError):
    """A request that is refused with `status`; `field` is the one that is wrong."""

    def __init__(
        self,
        problem: str,
        field: str | None = None,
        code: str | None = None,
        *,
        status: int = 400,
    ) -> None:
        super().__init__(problem)
        self.problem, self.field, self.code, self.status = problem, field, code, status
