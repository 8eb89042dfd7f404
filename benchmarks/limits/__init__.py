"""An app whose handlers have limits. Only the workers of benchmarks/limited.py know it, since limits cost time."""
