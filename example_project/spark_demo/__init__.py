"""A month of departures through the pipeline on Spark, for a person to watch: `make spark-demo`."""
