"""Offer small helpers that know nothing about messages."""
