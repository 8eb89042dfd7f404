"""Write rows: send a message for each."""
