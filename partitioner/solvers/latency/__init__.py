"""Least latency in the model 'atomic'."""
