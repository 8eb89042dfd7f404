"""An app whose handler has shares. Only the workers of benchmarks/shares.py know it."""
