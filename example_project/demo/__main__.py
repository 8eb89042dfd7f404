"""`python -m example_project.demo [--admin ADDRESS]`, under the settings of the demo."""

import sys

import django

django.setup()

from example_project.demo.look import look  # noqa: E402
from example_project.demo.play import play  # noqa: E402

try:
    sys.exit(look(sys.argv[2]) if sys.argv[1:2] == ["--admin"] else play())
except KeyboardInterrupt:
    sys.exit("The demo was stopped.")
