"""The keys of the default issuer, as a pod mounts them."""

from pathlib import Path

import pytest

from rollcall_protocol import pod_contract
from tests.token_issuer import TokenIssuer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of the mounted file."""
    path = tmp_path / pod_contract.TRUST_FILE
    path.write_text(TokenIssuer().trust())
    return path
