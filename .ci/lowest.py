"""Print constraints for pip: the lowest version that pyproject.toml allows of each package that a site runs.

The tools of the extras `dev`, `docs` and `compare` are left out, because no site runs them, except for the packages
that a site may run beside this one.
"""

import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

BESIDE = ("django-health-check", "django-unfold", "PyMySQL")


def main() -> None:
    """Print a constraint a line."""
    project = tomllib.loads(Path(__file__, "../../pyproject.toml").resolve().read_text())["project"]
    extras = project["optional-dependencies"]
    tools = [line for line in extras["dev"] if re.match("|".join(BESIDE), line)]
    others = [line for extra, lines in extras.items() if extra not in ("dev", "docs", "compare") for line in lines]
    wanted = [Requirement(line) for line in (*project["dependencies"], *others, *tools)]
    for each in wanted:
        if each.name != project["name"]:
            (lowest,) = (one.version for one in each.specifier if one.operator == ">=")
            sys.stdout.write(f"{each.name}=={lowest}\n")


if __name__ == "__main__":
    main()
