"""
Panels, rows, variables and the dashboard around them, in Grafana's JSON model (schema version 39,
Grafana 11 and later). A panel has its width and height; `build_dashboard` gives it its place and
its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]
Table = dict[str, Json]

COLUMNS = 24
_SCHEMA_VERSION = 39
_SOURCE: Table = {"type": "prometheus", "uid": "${datasource}"}

# The palette of Okabe and Ito (https://jfly.uni-koeln.de/color/), which the colour-blind can tell
# apart; a word says the same beside each colour.
BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#999999"
STATUS_COLOURS = {"healthy": BLUE, "degraded": ORANGE, "unhealthy": RED, "unknown": GREY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query of a panel. `legend`: a template such as `{{gpu}}`; `is_table`: the present labels
    and values, not a series.
    """

    expr: str
    legend: str = ""
    is_table: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel without its place. `json`: all but what `build_dashboard` adds."""

    title: str
    width: int
    height: int
    queries: tuple[Query, ...]
    json: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels below one title. `collapsed`: closed at first, and asks nothing until opened."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


def make_stat(
    title: str,
    queries: Query | Sequence[Query],
    description: str,
    *,
    width: int = 4,
    thresholds: Sequence[tuple[float | None, str]] = ((None, BLUE),),
    unit: str = "none",
    overrides: Sequence[Table] = (),
) -> Panel:
    """Numbers as of now. A panel without data shows 0: nothing to count is what it means here."""
    return _make_panel(
        "stat",
        title,
        queries,
        description,
        size=(width, 4),
        defaults={
            "unit": unit,
            "noValue": "0",
            "color": {"mode": "thresholds"},
            "thresholds": make_thresholds(thresholds),
        },
        overrides=overrides,
        options={
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "percentChangeColorMode": "standard",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "showPercentChange": False,
            "textMode": "auto",
            "wideLayout": True,
        },
    )


def make_series(
    title: str,
    queries: Query | Sequence[Query],
    description: str,
    *,
    unit: str = "short",
    width: int = 8,
    height: int = 8,
    stacked: bool = False,
    thresholds: Sequence[tuple[float | None, str]] = (),
    overrides: Sequence[Table] = (),
    maximum: float | None = None,
) -> Panel:
    """Lines over time, or stacked areas."""
    defaults: Table = {
        "unit": unit,
        "min": 0,
        "color": {"mode": "palette-classic"},
        "custom": {
            "drawStyle": "line",
            "fillOpacity": 60 if stacked else 0,
            "lineWidth": 1,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
            "thresholdsStyle": {"mode": "line" if thresholds else "off"},
        },
    }
    if maximum is not None:
        defaults["max"] = maximum
    if thresholds:
        defaults["thresholds"] = make_thresholds(thresholds)
    return _make_panel(
        "timeseries",
        title,
        queries,
        description,
        size=(width, height),
        defaults=defaults,
        overrides=overrides,
        options={
            "legend": {
                "calcs": [],
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


def make_timeline(
    title: str,
    queries: Query | Sequence[Query],
    description: str,
    *,
    values: Mapping[int, tuple[str, str]],
    width: int = COLUMNS,
    height: int = 5,
) -> Panel:
    """States over time. `values`: the word and the colour for each number."""
    return _make_panel(
        "state-timeline",
        title,
        queries,
        description,
        size=(width, height),
        defaults={
            "mappings": [make_value_mapping(values)],
            "custom": {"fillOpacity": 80, "lineWidth": 0},
            "color": {"mode": "thresholds"},
            "thresholds": make_thresholds(((None, GREY),)),
        },
        options={
            "alignValue": "left",
            "legend": {
                "calcs": [],
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
            },
            "mergeValues": True,
            "rowHeight": 0.9,
            "showValue": "auto",
            "tooltip": {"mode": "single", "sort": "none"},
        },
    )


def make_table(
    title: str,
    queries: Query | Sequence[Query],
    description: str,
    *,
    columns: Sequence[Column],
    sort_by: str = "",
    width: int = COLUMNS,
    height: int = 8,
    no_value: str = "none",
) -> Panel:
    """What is now, one line for each combination of labels. The queries aggregate by the labels
    that are columns, so that there are no others and several queries can be merged.
    """
    organized: Table = {
        "excludeByName": {"Time": True},
        "indexByName": {each.name: number for number, each in enumerate(columns)},
        "renameByName": {each.name: each.title for each in columns},
    }
    options: Table = {
        "cellHeight": "sm",
        "frameIndex": 0,
        "showHeader": True,
    }
    if sort_by:
        options["sortBy"] = [{"desc": True, "displayName": sort_by}]
    return _make_panel(
        "table",
        title,
        queries,
        description,
        size=(width, height),
        defaults={
            "noValue": no_value,
            "custom": {"align": "left", "cellOptions": {"type": "auto"}, "filterable": True},
        },
        overrides=[
            make_override(each.title, each.properties) for each in columns if each.properties
        ],
        options=options,
        transformations=[
            {"id": "merge", "options": {}},
            {"id": "organize", "options": organized},
        ],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table. `name`: a label, or `Value #A` for the query A (`Value` where there is
    one query only). `properties`: what its cells have beyond the table's.
    """

    name: str
    title: str
    properties: Mapping[str, Json] = field(default_factory=dict)


def make_override(name: str, properties: Mapping[str, Json]) -> Table:
    """Properties of the field with this name."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def make_status_overrides() -> list[Table]:
    """Each status in its colour."""
    return [
        make_override(status, {"color": {"mode": "fixed", "fixedColor": colour}})
        for status, colour in STATUS_COLOURS.items()
    ]


def make_value_mapping(values: Mapping[int, tuple[str, str]]) -> Table:
    """Numbers as words with their colours."""
    return {
        "type": "value",
        "options": {
            str(value): {"text": text, "color": colour, "index": index}
            for index, (value, (text, colour)) in enumerate(values.items())
        },
    }


def make_thresholds(steps: Iterable[tuple[float | None, str]]) -> Table:
    """Colours from a value on; None is the least."""
    return {
        "mode": "absolute",
        "steps": [{"value": value, "color": colour} for value, colour in steps],
    }


def make_query_variable(
    name: str, label: str, query: str, *, all_value: str = "", description: str = ""
) -> Table:
    """A variable whose values are those of a label. `all_value`: the regular expression for "All",
    which is then the first choice.
    """
    made: Table = {
        "type": "query",
        "name": name,
        "label": label,
        "description": description,
        "datasource": _SOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "multi": bool(all_value),
        "includeAll": bool(all_value),
    }
    if all_value:
        made["allValue"] = all_value
        made["current"] = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return made


def make_constant(name: str, value: str, description: str) -> Table:
    """A hidden variable: set once for a site."""
    option: Table = {"selected": True, "text": value, "value": value}
    return {
        "type": "constant",
        "name": name,
        "description": description,
        "query": value,
        "hide": 2,
        "current": option,
        "options": [option],
    }


def make_source_variable() -> Table:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "refresh": 1,
        "includeAll": False,
        "multi": False,
    }


def build_dashboard(
    *,
    uid: str,
    title: str,
    description: str,
    variables: Sequence[Table],
    rows: Sequence[Row],
    links: Sequence[Table] = (),
) -> Table:
    """The dashboard, with places and numbers for its panels."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["vitald"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "browser",
        "links": list(links),
        "annotations": {"list": []},
        "templating": {"list": list(variables)},
        "panels": _place_rows(rows),
    }


def _place_rows(rows: Sequence[Row]) -> list[Json]:
    placed: list[Json] = []
    number = top = 0
    for row in rows:
        number += 1
        inner, bottom = _place_panels(row.panels, number, top + 1)
        head: Table = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": list(inner) if row.collapsed else [],
        }
        placed.append(head)
        if not row.collapsed:
            placed += inner
        number += len(inner)
        top = top + 1 if row.collapsed else bottom
    return placed


def _place_panels(panels: Sequence[Panel], number: int, top: int) -> tuple[list[Table], int]:
    """From left to right, and on the next line where one does not fit. The panels of a line have
    one height.
    """
    placed: list[Table] = []
    left, height = 0, 0
    for panel in panels:
        if left + panel.width > COLUMNS:
            left, top, height = 0, top + height, 0
        if height and panel.height != height:
            raise ValueError(f"{panel.title}: panels of a line have one height")
        number, height = number + 1, panel.height
        place: Table = {"x": left, "y": top, "w": panel.width, "h": panel.height}
        placed.append({"id": number, "title": panel.title, "gridPos": place, **panel.json})
        left += panel.width
    return placed, top + height


def _make_panel(
    type_: str,
    title: str,
    queries: Query | Sequence[Query],
    description: str,
    *,
    size: tuple[int, int],
    defaults: Table,
    options: Table,
    overrides: Sequence[Table] = (),
    transformations: Sequence[Table] = (),
) -> Panel:
    asked = (queries,) if isinstance(queries, Query) else tuple(queries)
    json: Table = {
        "type": type_,
        "description": description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "options": options,
        "targets": [_make_target(query, chr(ord("A") + n)) for n, query in enumerate(asked)],
    }
    if transformations:
        json["transformations"] = list(transformations)
    return Panel(title=title, width=size[0], height=size[1], queries=asked, json=json)


def _make_target(query: Query, ref_id: str) -> Table:
    target: Table = {"refId": ref_id, "datasource": _SOURCE, "expr": query.expr}
    if query.is_table:
        return {**target, "instant": True, "range": False, "format": "table"}
    return {
        **target,
        "instant": False,
        "range": True,
        "format": "time_series",
        "legendFormat": query.legend or "__auto",
    }
