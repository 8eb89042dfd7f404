"""--reload: a change of code ends the worker in good order, and starts it anew."""

import os
import signal
from pathlib import Path

from tests.worker.processes import Site


def test_a_change_of_code_finishes_what_runs_and_starts_anew(site: Site, tmp_path: Path) -> None:
    code = tmp_path / "reloaded_settings.py"
    code.write_text("from tests.worker.settings import *\n")
    site.env["DJANGO_SETTINGS_MODULE"] = code.stem
    site.env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    worker = site.worker("--reload")
    site.send("a", key="hold")
    held = site.line.next()

    code.touch()
    while not worker.says_within("Code changed", 2):
        code.touch()  # the first change may have come before the reloader's first look
    held.release()
    assert site.line.next().what == "ran"
    worker.until_says("Messages: finish 1")
    worker.until_says_times("Connections at most", 2)
    site.send("b")
    again = site.line.next()
    assert again.pid != held.pid

    os.killpg(worker.pid, signal.SIGINT)  # as a terminal does
    assert worker.wait() == 0
    assert site.totals()["finished"] == 2
