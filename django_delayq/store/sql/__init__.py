"""The SQL of the store: what each vendor of a database spells its own way, and the fragments that statements share."""
