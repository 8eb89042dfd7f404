"""Jobs over DataFrames. `manage.py delayq_spark` only calls them."""
