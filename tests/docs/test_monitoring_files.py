"""The rules, the dashboard and the recipe for KEDA can be loaded, and ask for metrics and labels that there are."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from django_delayq import metrics
from django_delayq.store.statistics import AHEAD_MS
from django_delayq.support.units import to_text
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


def manifest(page: str) -> Any:
    """The only YAML of a page."""
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / f"docs/how-to/{page}.md").read_text(), re.DOTALL)
    return yaml.safe_load(block)


def test_the_recipe_for_keda_asks_for_a_metric_that_is_written() -> None:
    deployment, scaled = manifest("deploy"), manifest("monitoring")
    assert scaled["kind"] == "ScaledObject"
    assert scaled["spec"]["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}
    (trigger,) = scaled["spec"]["triggers"]
    found = re.fullmatch(r"max\((delayq_\w+)\{(.+)\}\)", trigger["metadata"]["query"])
    assert found
    asked = dict(part.split("=") for part in found[2].split(", "))
    assert asked.keys() == LABELS[found[1]]
    assert asked["ahead"] == f'"{to_text(AHEAD_MS)}"'


def test_each_rule_and_each_panel_has_a_name_of_its_own() -> None:
    rules = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for names in (rules, [panel["id"] for panel in panels], [panel["title"] for panel in panels]):
        assert len(set(names)) == len(names)
