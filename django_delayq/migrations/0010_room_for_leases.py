"""Leave room in the pages of `delayq_ready` for the version of each row that its lease writes, on PostgreSQL.

A claim takes all rows of a page at once, so most rows found no room in pages that were 70 % full. With room in its
page, a claim changes the row alone (heap-only). Without it, a claim writes the row to another page, and an entry to
each index: more log, twice the processor time, and more dead entries to pass over while another session keeps a
snapshot. Rows that are there already stay where they are.
"""

from django.db import migrations

from django_delayq.migrations._postgresql import PostgresSQL


class Migration(migrations.Migration):
    dependencies = [("delayq", "0009_without_placed")]

    operations = [
        PostgresSQL("ALTER TABLE delayq_ready SET (fillfactor = 45)", "ALTER TABLE delayq_ready SET (fillfactor = 70)"),
    ]
