"""The data pipeline on Spark: a data source, and jobs over DataFrames. Needs the extra `spark`; nothing imports it."""
