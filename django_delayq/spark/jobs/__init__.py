"""Jobs over DataFrames; `manage.py delayq_spark` is a thin way to call them."""
