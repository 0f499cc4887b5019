"""A pod's own token is read anew each time, as the kubelet renews it."""

from pathlib import Path

import pytest

from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.identity.own_tokens import TokenFile, TokenUnreadableError


def test_a_renewed_token_is_the_next_one_used(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    token = TokenFile(path)
    assert token() == "first"
    path.write_text("second\n")
    assert token() == "second"


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff"], ids=["empty", "blank", "no text"])
def test_a_worker_does_not_start_without_a_token(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=r"token: .*does the pod mount"):
        TokenFile(path)


def test_a_token_that_goes_away_later_is_a_connection_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    token = TokenFile(path)
    path.unlink()
    with pytest.raises(TokenUnreadableError, match="cannot read the token"):
        token()
