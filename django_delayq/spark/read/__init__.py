"""Read waiting messages, and the tables of a store."""
