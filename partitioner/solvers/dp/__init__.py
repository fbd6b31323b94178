"""Dynamic programming over downsets."""
