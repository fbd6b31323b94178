"""Latency by the model ``list``: each stage runs one op at a time, stages overlap."""
