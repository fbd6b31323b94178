"""Cut a network into pipeline stages for unequal devices: measure, decide with proof, run."""
