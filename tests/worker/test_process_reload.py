"""--reload: a change of code ends the worker in good order, and starts it anew; a signal ends it in good order."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.processes import Site, WorkerProcess


def use_settings(site: Site, directory: Path, code: str) -> Path:
    """Let the site's workers have settings with this code. Return their file."""
    path = directory / "own_settings.py"
    path.write_text(code)
    site.env["DJANGO_SETTINGS_MODULE"] = path.stem
    site.env["PYTHONPATH"] = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    return path


@pytest.mark.parametrize("arguments", [(), ("--processes", "1")], ids=["threads", "processes"])
def test_a_change_of_code_finishes_what_runs_and_starts_anew(
    site: Site, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    code = use_settings(site, tmp_path, "from tests.worker.settings import *\n")
    worker = site.worker("--reload", *arguments)
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


def test_code_that_cannot_be_loaded_is_waited_for_until_it_is_mended(site: Site, tmp_path: Path) -> None:
    use_settings(site, tmp_path, "from tests.worker.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'mended']\n")
    app = tmp_path / "mended"
    app.mkdir()
    (app / "__init__.py").touch()
    code = app / "delayed.py"
    code.write_text("")
    worker = site.worker("--reload")
    site.send("a")
    assert site.line.next().id == "a"  # its code is loaded, and watched
    code.write_text("def f(:\n")
    while not worker.says_within("Waiting for a change of code", 2):
        code.touch()
    assert "SyntaxError" in worker.text
    code.write_text("")
    site.send("b")
    assert site.line.next().id == "b"
    assert worker.stop() == 0


@pytest.mark.parametrize("to_group", [False, True], ids=["to the command", "to its group"])
def test_sigterm_finishes_what_runs_before_the_end(site: Site, to_group: bool) -> None:
    worker = site.worker("--reload")
    site.send("a", key="hold")
    held = site.line.next()
    if to_group:
        os.killpg(worker.pid, signal.SIGTERM)
    else:
        worker.signal(signal.SIGTERM)
    worker.until_says("finishing what runs")
    held.release()
    assert site.line.next().what == "ran"
    assert worker.wait() == 0
    worker.until_says("Messages: finish 1")
    assert site.totals()["finished"] == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_the_stop_button_of_an_ide_stops_the_worker_that_it_does_not_see(site: Site, signum: signal.Signals) -> None:
    worker = site.worker("--reload")
    site.send("a", key="hold")
    held = site.line.next()
    worker.signal(signum)
    worker.until_says("finishing what runs")
    held.release()
    assert site.line.next().what == "ran"
    worker.until_says("Messages: finish 1")
    worker.wait()


AGAIN = """
import os, signal, sys
from tests.worker.settings import *

def again(frame, event, arg):
    if event == "call" and sys.exc_info()[0] is SystemExit:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGTERM)

sys.setprofile(again)
"""
"""Settings that send their process SIGTERM once more, at the first call that it makes while it exits."""


NESTED = """
import os, signal, sys
from django.utils import autoreload
from django_delayq.worker import lifecycle
from tests.worker.settings import *

arguments = autoreload.get_child_arguments

def again(frame, event, arg):
    while frame and (frame.f_code.co_name, frame.f_code.co_filename) != ("stop", lifecycle.__file__):
        frame = frame.f_back
    if frame:
        os.kill(os.getpid(), signal.SIGTERM)

def get_child_arguments():
    sys.setprofile(again)
    return arguments()

autoreload.get_child_arguments = get_child_arguments
"""
"""Settings that send the outer process SIGTERM again at each step of what it does because of one."""


@pytest.mark.parametrize("code", [AGAIN, NESTED], ids=["while it exits", "in the midst of the first"])
def test_a_second_sigterm_does_not_break_off_what_the_first_has_begun(site: Site, tmp_path: Path, code: str) -> None:
    use_settings(site, tmp_path, code)
    worker = site.worker("--reload")
    site.send("a", key="hold")
    held = site.line.next()
    worker.signal(signal.SIGTERM)
    worker.until_says("finishing what runs")
    held.release()
    assert worker.wait() == 0
    worker.until_says("Messages: finish 1")


def test_a_second_ctrl_c_interrupts_what_runs(site: Site) -> None:
    _stop_with_two_signals(site, _press_ctrl_c)


def test_a_second_sigint_of_an_ide_interrupts_what_runs(site: Site) -> None:
    _stop_with_two_signals(site, lambda worker: worker.signal(signal.SIGINT))


DEAF = """
import signal, sys
from tests.worker.settings import *

def deafen(frame, event, arg):
    if event == "call" and sys.exc_info()[0] is SystemExit:
        sys.setprofile(None)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])

sys.setprofile(deafen)
"""
"""Settings with which the system gives SIGINT to other threads than the main one, from its first call in its exit on.

Like a signal that comes just before the main thread begins to wait, it doesn't end that wait.
"""


def test_a_second_ctrl_c_that_does_not_wake_the_main_thread_interrupts_what_runs(site: Site, tmp_path: Path) -> None:
    use_settings(site, tmp_path, DEAF)
    _stop_with_two_signals(site, _press_ctrl_c)


def _press_ctrl_c(worker: WorkerProcess) -> None:
    os.killpg(worker.pid, signal.SIGINT)


def _stop_with_two_signals(site: Site, send: Callable[[WorkerProcess], None]) -> None:
    worker = site.worker("--reload", "--shutdown-timeout", "600")
    site.send("a", key="hold")
    site.line.next()
    send(worker)
    worker.until_says("finishing what runs")
    send(worker)
    worker.wait()
    assert "Traceback" not in worker.text
    site.env["DJANGO_SETTINGS_MODULE"] = "tests.worker.settings"
    site.worker()
    again = site.line.next_of("a")
    assert (again.what, again.attempt) == ("holds", 1)
    assert site.see("a").crashes == 0
