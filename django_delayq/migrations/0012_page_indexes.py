"""Leave PostgreSQL one index by which it can find a row of `delayq_ready` by its primary key, and one by its id.

For a table that was vacuumed while nothing waited, PostgreSQL expects no rows, so that all indexes cost the same. It
looked primary keys up in the indexes in whose order pages are read (see `PageIndex`), and ids in any index of an alias:
each claim, renewal, settlement and cancel read a whole index, seconds for each batch with a few hundred thousand rows.

The indexes are built again, which blocks sends meanwhile, some seconds for a few million rows. Databases of other
vendors stay as they are.
"""

from django.db import migrations, models

from django_delayq.migrations._postgresql import PostgresSQL
from django_delayq.models.indexes import PageIndex

BEFORE = """
ALTER TABLE delayq_ready DROP CONSTRAINT delayq_ready_id;
ALTER TABLE delayq_ready ADD CONSTRAINT delayq_ready_id UNIQUE (alias, message_id) WITH (fillfactor = 97);
DROP INDEX delayq_ready_list;
DROP INDEX delayq_ready_once;
CREATE INDEX delayq_ready_list ON delayq_ready (alias, due_at, id) WITH (fillfactor = 97);
CREATE INDEX delayq_ready_once ON delayq_ready (alias, due_at, id) WHERE at_most_once;
"""
AFTER = BEFORE.replace("(alias, message_id)", "(message_id, alias)").replace(", id)", ", (id + 0))")


class Migration(migrations.Migration):
    dependencies = [("delayq", "0011_full_index_pages")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[PostgresSQL(AFTER, BEFORE)],
            state_operations=[
                migrations.RemoveConstraint("readymessage", "delayq_ready_id"),
                migrations.AddConstraint(
                    "readymessage",
                    models.UniqueConstraint(fields=["message_id", "alias"], name="delayq_ready_id"),
                ),
                migrations.RemoveIndex("readymessage", "delayq_ready_list"),
                migrations.AddIndex(
                    "readymessage", PageIndex(fields=["alias", "due_at", "id"], name="delayq_ready_list")
                ),
            ],
        ),
    ]
