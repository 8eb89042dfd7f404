"""SQLite: one statement for each move, and one writer at a time, so that no row is ever locked and to be skipped."""

from django_delayq.store.sql.portable import apply as apply, finish_here as finish_here  # part of `Statements`
from django_delayq.store.sql.returning import (  # part of `Statements`
    change as change,
    change_given as change_given,
    insert as insert,
)
