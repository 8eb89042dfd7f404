"""Compare django-delayq with other queues: `make compare`, or `python -m benchmarks.compare --help`.

Each contender runs the same work against private servers, by a small adapter in `peers`, in a virtual environment of
its own. `drive` runs an adapter, `measures` times it, `report` writes what came out.
"""
