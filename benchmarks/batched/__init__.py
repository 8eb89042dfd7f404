"""An app with a handler of many. Only the workers of benchmarks/batches.py know it."""
