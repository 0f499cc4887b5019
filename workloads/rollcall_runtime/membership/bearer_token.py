"""How a member authenticates to the coordinator: the job's token as a bearer token."""


class CredentialsRefusedError(RuntimeError):
    """The coordinator refuses the token. A restart reads the mounted token again."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url} refuses the member token; was the job's Secret replaced?")


def bearer(token: str) -> dict[str, str]:
    """The HTTP header that carries the token."""
    return {"Authorization": f"Bearer {token}"}
