"""The Redis client."""
