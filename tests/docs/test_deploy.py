"""What docs/how-to/deploy.md says about systemd holds."""

import configparser
import re

from tests.docs.site import ROOT

PAGE = (ROOT / "docs/how-to/deploy.md").read_text()


def test_systemd_waits_longer_than_the_worker_takes_to_stop() -> None:
    (unit,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(unit)
    service = parser["Service"]
    (shutdown_timeout,) = re.findall(r"--shutdown-timeout (\d+)", service["ExecStart"])
    assert int(service["TimeoutStopSec"]) > int(shutdown_timeout)
