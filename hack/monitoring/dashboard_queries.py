"""The queries of the chart's dashboards, as a person's Grafana would send them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from hack.monitoring.dashboards.__main__ import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class PanelQuery(NamedTuple):
    """One query of a panel; `name` is unique."""

    dashboard: str
    panel: str
    legend: str
    expression: str

    @property
    def name(self) -> str:
        """Dashboard, panel and legend, such as `job/Reward/batch`."""
        return f"{self.dashboard}/{self.panel}/{self.legend}"


def panel_queries(variables: Mapping[str, str]) -> Iterator[PanelQuery]:
    """All of them, with values in the place of variables such as `$job`."""
    for path in sorted(FOLDER.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for variable, value in variables.items():
                    expression = expression.replace(f"${variable}", value)
                yield PanelQuery(path.stem, panel["title"], target["legendFormat"], expression)
