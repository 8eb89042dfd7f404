"""Fill the last page of the indexes that grow at their end before they begin another one, on PostgreSQL.

Such an index splits its last page only, and what stays behind is never written again, except by what comes a moment
late from another session. PostgreSQL leaves a tenth of the page free for that, and writes as much to its log. With 3 %,
which is room for five entries or more, both the log and the indexes are smaller, also with 16 sessions that send one
message at a time; with none they are larger. Pages that are there already stay as they are.
"""

from django.db import migrations

from django_delayq.migrations._postgresql import PostgresSQL

INDEXES = (
    "delayq_ready_pkey",
    "delayq_ready_id",  # ids that are made up begin with the time
    "delayq_ready_list",
    "delayq_finish_pkey",
    "delayq_finish_id",
    "delayq_finish_ended",
    "delayq_finish_pair",
)


class Migration(migrations.Migration):
    dependencies = [("delayq", "0010_room_for_leases")]

    operations = [
        PostgresSQL(
            f"ALTER INDEX IF EXISTS {index} SET (fillfactor = 97)",
            f"ALTER INDEX IF EXISTS {index} RESET (fillfactor)",
        )
        for index in INDEXES
    ]
