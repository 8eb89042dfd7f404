"""`python -m example_project.demo`, under the settings of the demo."""

import sys

import django

django.setup()

from example_project.demo.play import play  # noqa: E402

try:
    sys.exit(play())
except KeyboardInterrupt:
    sys.exit("The demo was stopped.")
