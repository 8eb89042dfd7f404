"""Streams of messages that end, and streams of rows that are sent."""
