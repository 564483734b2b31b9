"""
The Grafana dashboards: `python -m tests.dashboards` writes packaging/grafana/*.json.

`fleet` and `node` say which panels there are and what they ask; `panels` has the JSON of each type
of panel (https://grafana.com/docs/grafana/latest/visualizations/dashboards/build-dashboards/view-dashboard-json-model/).
"""
