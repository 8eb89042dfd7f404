"""Write the output of a command to a terminal, in harmless lines; an error is one such line too."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, OutputWrapper
from django.db import DatabaseError, InterfaceError

from django_delayq.core.errors import DelayqError
from django_delayq.management.support.terminal import Write, clean, leave_broken_pipe


@contextmanager
def speaking(stdout: OutputWrapper, using: str) -> Iterator[Write]:
    """Yield a function that writes a line.

    An error of an alias, a database, a broker or a file in the block becomes a `CommandError`, in one line without a
    password. If nobody reads the output any more, the command ends quietly with 1.
    """
    try:
        yield partial(_write, stdout)
        stdout.flush()
    except BrokenPipeError:
        leave_broken_pipe()
    except CommandError as error:
        raise CommandError(clean(str(error)), returncode=error.returncode) from error
    except ImproperlyConfigured as error:
        raise CommandError(clean(str(error))) from error
    except (DelayqError, OSError) as error:
        raise CommandError(clean(f"{using}: {error}")) from error
    except (DatabaseError, InterfaceError) as error:  # it may be away; what follows the first line may quote data
        first_line = str(error).strip().partition("\n")[0]
        raise CommandError(clean(f"{using}: {type(error).__name__}: {first_line}")) from error


def _write(stdout: OutputWrapper, line: str) -> None:
    stdout.write(clean(line, getattr(stdout, "encoding", None) or "utf-8"))
