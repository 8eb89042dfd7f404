"""`python -m example_project.demo [--admin ADDRESS]`, under the settings of the demo."""

import signal
import sys

import django

django.setup()

from example_project.demo.look import look  # noqa: E402
from example_project.demo.play import play  # noqa: E402

for ending in (signal.SIGINT, signal.SIGTERM):  # a shell has what it starts in the background ignore the first
    signal.signal(ending, signal.default_int_handler)  # what was started is stopped after either
try:
    sys.exit(look(sys.argv[2]) if sys.argv[1:2] == ["--admin"] else play())
except KeyboardInterrupt:
    sys.exit("The demo was stopped.")
