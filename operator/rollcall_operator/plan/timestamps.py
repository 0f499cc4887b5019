"""Unix seconds to the API's time strings and back."""

from datetime import UTC, datetime


def to_time(seconds: float) -> str:
    """Unix seconds as a metav1.Time in UTC, whose fraction of a second is cut off."""
    return datetime.fromtimestamp(int(seconds), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_micro_time(seconds: float) -> str:
    """Unix seconds as a metav1.MicroTime in UTC."""
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_time(text: str) -> float:
    """Unix seconds of either kind of time."""
    return datetime.fromisoformat(text).timestamp()
