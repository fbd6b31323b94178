"""Exhaustive search, for small problems and for checking the others."""
