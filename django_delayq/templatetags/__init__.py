"""The template tags."""
