"""The page of one message: its facts, its payload, its history."""
