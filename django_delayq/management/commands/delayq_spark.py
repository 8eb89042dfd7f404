"""`manage.py delayq_spark`: run jobs on Spark.

If the extra `spark` is not installed, the command says that it is needed.
"""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_delayq.conf import DEFAULT_ALIAS
from django_delayq.management.support.arguments import add_djangos_own
from django_delayq.management.support.terminal import speaking


class Command(BaseCommand):
    """The command `delayq_spark`: it runs a job by its module, one of those that spark/cli/jobs.py lists."""

    help = "Jobs on Spark. Exit codes: 0 done, 1 not done or differences found, 2 wrong command line, 130 stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        try:
            from django_delayq.spark.cli.jobs import JOBS  # late: the command is there without the extra, too
        except ImportError as error:
            raise CommandError(f"{error}: pip install 'django-delayq[spark]'") from error
        subparsers = parser.add_subparsers(title="jobs", dest="job_name", metavar="JOB", required=True)
        for name, job in JOBS.items():
            subparser = subparsers.add_parser(name, help=job.HELP, description=job.HELP)
            subparser.add_argument(
                "--using", default=DEFAULT_ALIAS, metavar="ALIAS", help="The alias in DELAYQ. Default: %(default)s."
            )
            subparser.add_argument(
                "--master", metavar="URL", help="Where Spark runs, unless spark-submit says so. Default: local[*]."
            )
            job.add_arguments(subparser)
            add_djangos_own(subparser)

    def handle(self, *args: Any, **options: Any) -> None:
        from django_delayq.spark.cli.jobs import run_job  # late, as above

        try:
            with speaking(self.stdout, options["using"]) as write:
                code = run_job(options["job_name"], options, write)
        except KeyboardInterrupt as interrupt:
            stopped = "Stopped. What was done is whole, and the same job run again does the rest."
            raise CommandError(stopped, returncode=130) from interrupt
        if code:
            sys.exit(code)
