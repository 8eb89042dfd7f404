"""What pyproject.toml says."""

import tomllib
from typing import Any

from tests.docs.site import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
