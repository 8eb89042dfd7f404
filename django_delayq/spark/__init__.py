"""The data pipeline on Spark: a data source, and jobs over DataFrames.

It needs the extra `spark`. Only the commands `delayq_spark` and `delayq forget`, and `pyspark_delayq`, import it.
"""
