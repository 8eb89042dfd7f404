"""The lists of messages: columns, filters, search, export."""
