"""Cuts along topological orders, at any size."""
