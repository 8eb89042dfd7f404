"""The rules and the dashboard in docs/monitoring can be loaded, and ask for metrics and labels that there are."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from django_delayq import metrics
from tests.docs.site import ROOT

RULES = ROOT / "docs/monitoring/alerts.yml"
DASHBOARD = ROOT / "docs/monitoring/grafana.json"
_SUFFIXES = {"": metrics._GAUGES, "_total": metrics._COUNTERS, "_bucket": metrics._HISTOGRAMS}
LABELS = {
    f"delayq_{name}{suffix}": set(labels)
    for suffix, families in _SUFFIXES.items()
    for name, (_help, labels) in families.items()
}


def expressions() -> Iterator[tuple[str, str]]:
    """Each expression of the two files, and the text that shows its labels."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"], rule["annotations"]["summary"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


@pytest.mark.parametrize(("expression", "shown"), list(expressions()))
def test_an_expression_asks_for_what_there_is(expression: str, shown: str) -> None:
    named = re.findall(r"delayq_\w+", expression)
    assert named
    labels = set.intersection(*(LABELS[name] for name in named)) | {"le"}
    used = re.findall(r"\$labels\.(\w+)|\{\{(\w+)\}\}", shown)
    grouped = [each for names in re.findall(r"(?:by|on) \(([\w, ]+)\)", expression) for each in names.split(", ")]
    assert {*(first or second for first, second in used), *grouped} <= labels


def test_each_rule_and_each_panel_has_a_name_of_its_own() -> None:
    rules = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for names in (rules, [panel["id"] for panel in panels], [panel["title"] for panel in panels]):
        assert len(set(names)) == len(names)
