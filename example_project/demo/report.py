"""Print the demo's lines."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from django.conf import settings

from django_delayq.conf import get_alias
from example_project.demo.figures import Figures
from example_project.demo.pace import DAY
from example_project.demo.tables import Kind
from example_project.demo.uses import Use

LOOK_AROUND = """
To see it in the admin (Ctrl-C ends it):
  {python} manage.py demo --admin{broker}

To look around, with the demo's data and at its pace (an order closes in 42 ms and is reminded within 14 s{ended}):
  export DJANGO_SETTINGS_MODULE=example_project.demo.settings
  {python} manage.py runserver           # http://127.0.0.1:8000/
  {python} manage.py run_delayq          # beside it: runs what is due
  {python} manage.py delayq status
  {python} manage.py delayq explain store:14:text   # the one that failed: its number does not exist
For the shop at its real pace, unset that variable and run `{python} manage.py migrate` first."""


def say(line: str) -> None:
    """Print one line, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def show_figures(figures: Figures) -> None:
    """Print the table of figures."""
    rows = {
        "sent": figures.sent,
        "run": figures.run,
        "cancelled": figures.cancelled,
        "retried": figures.retried,
        "taken over": figures.taken_over,
        "failed": figures.error,
        "early": figures.early,
        "lost": figures.lost,
        "doubled": figures.doubled,
        "lateness p50": f"{figures.lateness_p50:.1f} ms",
        "lateness p95": f"{figures.lateness_p95:.1f} ms",
        "lateness p99": f"{figures.lateness_p99:.1f} ms",
    }
    say("")
    for name, figure in rows.items():
        say(f"  {name:<14}{figure:>10}")
    if figures.is_only_late:
        say("  A busy machine makes messages late; nothing was early or lost.")


def show_tables(kinds_by_table: Iterable[tuple[str, Sequence[Kind]]]) -> None:
    """Print how many rows of each kind each table has, and the last few of each kind."""
    say("\nThe tables:")
    for name, kinds in kinds_by_table:
        say(f"  {name:<14}{sum(kind.count for kind in kinds):>10}")
        for kind in kinds:
            say(f"    {kind.count} × {kind.says}, the last of them:")
            for id, key, due_at in kind.last:
                say(f"      {id:<22} {key:<15} due {due_at:%H:%M:%S.%f}"[:-3])


def show_uses(uses: Iterable[Use]) -> None:
    """Print what the shop made of its messages."""
    say("")
    for use in uses:
        say(f"  {use.name:<14}{use.says}" + ("" if use.adds_up else "; THIS DOES NOT ADD UP"))


def show_differences(differences: Sequence[str]) -> None:
    """Print where the broker counts something else than the demo."""
    say("")
    for difference in differences:
        say(f"difference: {difference}")


def show_where_to_look() -> None:
    """Print how to start the site and look around."""
    python = Path(sys.executable)
    near = python.relative_to(settings.BASE_DIR) if python.is_relative_to(settings.BASE_DIR) else python
    broker, ended = {
        "RedisBroker": ("", ""),
        "RabbitMQBroker": (" --broker rabbitmq", "; RabbitMQ has ended, so with Redis"),
        "DatabaseBroker": (" --broker database", "; with Redis, unless you set DELAYQ_DEMO_BROKER=database"),
    }[get_alias().broker.rpartition(".")[2]]
    say(LOOK_AROUND.format(python=near, broker=broker, ended=ended))


def day() -> str:
    """Return how long a day of the shop lasts, for people."""
    return f"{DAY.total_seconds():g} s"
