"""How a rollout shows the job's token."""


class CredentialsRefusedError(RuntimeError):
    """The coordinator does not know the token: a restart reads the mounted one again."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url} refuses the member token; was the job's Secret replaced?")


def bearer(token: str) -> dict[str, str]:
    """The header that carries the token."""
    return {"Authorization": f"Bearer {token}"}
