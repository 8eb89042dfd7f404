"""The data pipeline on Spark: a data source, and jobs over DataFrames.

It needs the extra `spark`. Only the command `delayq_spark` and `pyspark_delayq` import it.
"""
