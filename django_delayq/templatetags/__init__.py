"""Offer the template tags and filters of the admin."""
