"""Exact reductions and their inverses."""
