"""Plans into modules."""
