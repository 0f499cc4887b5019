"""Charts as SVG files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> None:
    """Write it as SVG, the same bytes for the same figures."""
    with mpl.rc_context({"svg.hashsalt": "rollcall", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
