"""What docs/how-to/deploy.md says about systemd holds."""

import configparser
import re

import yaml

from django_delayq.management.commands.run_delayq import Command
from django_delayq.support.units import to_bytes
from tests.docs.site import ROOT

PAGE = (ROOT / "docs/how-to/deploy.md").read_text()


def test_systemd_waits_longer_than_the_worker_takes_to_stop() -> None:
    (unit,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(unit)
    service = parser["Service"]
    (shutdown_timeout,) = re.findall(r"--shutdown-timeout (\d+)", service["ExecStart"])
    assert int(service["TimeoutStopSec"]) > int(shutdown_timeout)


def test_kubernetes_gives_a_worker_the_time_to_stop_and_room_above_its_memory() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    chosen = Command().create_parser("manage.py", "run_delayq").parse_args(container["args"][3:])
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"\nUSER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}\n" in PAGE
    assert pod["terminationGracePeriodSeconds"] > chosen.shutdown_timeout
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["timeoutSeconds"] >= 5
    assert to_bytes(container["resources"]["limits"]["memory"] + "B", "memory") > chosen.max_memory
