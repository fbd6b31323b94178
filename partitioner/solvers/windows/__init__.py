"""Where the cuts of a short pipeline can be: bounds and proofs at size."""
