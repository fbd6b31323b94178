"""CP-SAT models of contiguous problems."""
