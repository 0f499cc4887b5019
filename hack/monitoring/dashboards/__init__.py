"""Grafana dashboards as code.

`python -m hack.monitoring.dashboards --write` makes the chart's files of it.
"""
