"""What tests of training engines share."""

from collections.abc import Iterator

import pytest

from rollcall_runtime.train.process_group import TrainerProcessGroup


@pytest.fixture
def ranks() -> Iterator[TrainerProcessGroup]:
    """A process group of this process alone."""
    made = TrainerProcessGroup()
    yield made
    made.close()
