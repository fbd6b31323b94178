"""Measure ops, stages and hand-over on the devices that will run them."""
