"""A stream of what finishes, for each of which a note is sent, until it is killed.

`python -m tests.spark.following CHECKPOINT`
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from django_delayq.spark.session import build_session
from tests.spark.support import STORED


def follow(spark: SparkSession, checkpoint: str) -> StreamingQuery:
    """The stream, from where it was. The key is `a`, and that of the notes is `note`."""
    columns = {"using": STORED, "table": "finish", "startingFrom": "earliest", "columns": "pk,key"}
    ended = spark.readStream.format("delayq").options(**columns).load().where("key = 'a'")
    notes = ended.selectExpr("'note' AS key", "concat('of ', pk) AS id", "'1h' AS delay")
    return notes.writeStream.format("delayq").options(using=STORED, checkpointLocation=checkpoint).start()


def main(checkpoint: str) -> None:
    follow(build_session(master="local[2,4]"), checkpoint).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
