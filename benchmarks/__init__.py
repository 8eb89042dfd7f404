"""Measure what django-delayq costs, as ratios against a raw redis-py floor in the same run: `make bench`."""
