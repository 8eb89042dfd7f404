"""On PostgreSQL, leave room in the pages of the table that changes all the time, and vacuum it early."""

from django.db import migrations

from django_delayq.migrations._postgresql import PostgresSQL

SETTINGS = {
    "fillfactor": 70,  # a claim and a renewal change no index: the new version of the row goes on the same page
    "autovacuum_vacuum_scale_factor": 0.01,  # by default a fifth of the rows may be dead before, of millions that wait
    "autovacuum_vacuum_threshold": 5_000,
    "autovacuum_analyze_scale_factor": 0.02,
}
SET = ", ".join(f"{name} = {value}" for name, value in SETTINGS.items())


class Migration(migrations.Migration):
    dependencies = [("delayq", "0001_initial")]

    operations = [
        PostgresSQL(f"ALTER TABLE delayq_ready SET ({SET})", f"ALTER TABLE delayq_ready RESET ({', '.join(SETTINGS)})"),
    ]
