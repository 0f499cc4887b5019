"""The queries are those of the chart's files, as Grafana sends them."""

from hack.monitoring.dashboard_queries import panel_queries

VARIABLES = {"namespace": "team", "job": "reverse", "__rate_interval": "1m"}


def test_no_variable_is_left() -> None:
    queries = list(panel_queries(VARIABLES))
    assert {query.dashboard for query in queries} == {"fleet", "job", "weight-sync"}
    assert [query.name for query in queries if "$" in query.expression] == []


def test_a_query_has_the_name_of_its_panel_and_its_line() -> None:
    found = {query.name: query.expression for query in panel_queries(VARIABLES)}
    assert found["job/Weight lag of each pod/{{pod}}"] == (
        'max by (pod) (rollcall_weight_lag_versions{namespace=~"team", job=~"reverse"})'
    )
