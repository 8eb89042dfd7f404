"""Streams: what ends, as it ends; and messages sent from a stream."""
