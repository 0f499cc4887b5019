"""Dashboards from code, and a Prometheus that scrapes and judges as the chart says."""
