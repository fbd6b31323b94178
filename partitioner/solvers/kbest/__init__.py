"""The k best plans."""
