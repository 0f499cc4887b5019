"""A recorded response for tests, with some values changed."""

from typing import Any

from rollcall_protocol.sample_record import SampleRecord


def sample_record(**changes: Any) -> SampleRecord:
    """Of step 3: three tokens, of which the last was sampled by newer weights."""
    given: dict[str, Any] = {
        "step": 3,
        "prompt": 17,
        "sample": 0,
        "time": 1000.5,
        "reward": 0.25,
        "group_size": 4,
        "group_mean": 0.5,
        "parts": {"format": 1.0},
        "prompt_text": "<s>What is 2 + 2?",
        "tokens": ("It ", "is 4", "</s>"),
        "left_out": 0,
        "advantages": ((-1.5, 3),),
        "mismatch": (0.01, -0.2, 0.7),
        "versions": ((1, 2), (2, 1)),
        "trained_version": 2,
        "ended": "end token",
        "seconds": 0.5,
    }
    return SampleRecord(**given | changes)
