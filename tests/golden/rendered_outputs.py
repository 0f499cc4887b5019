"""The golden files by name."""

from pathlib import Path

from rollcall_operator.api.crd import RLJOB, ROLLOUTPOOL
from tests.golden import explain, messages, metrics

FOLDER = Path(__file__).parent


def rendered() -> dict[str, str]:
    """The text of each golden file, as the code gives it now."""
    spoken = messages.collect()
    return {
        "explain_rljob.txt": explain.render(RLJOB),
        "explain_rolloutpool.txt": explain.render(ROLLOUTPOOL),
        "conditions.txt": messages.render_conditions(spoken),
        "events.txt": messages.render_events(spoken),
        "metrics.txt": metrics.render(),
    }
