"""Kernels better than the rules' own, found by measuring: records of them, and the search."""
