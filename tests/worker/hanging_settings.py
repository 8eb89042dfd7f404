"""Settings of a site whose code never comes to be loaded."""

import threading

threading.Event().wait()
