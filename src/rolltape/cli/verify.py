"""`rolltape verify`: derive every digest of a store anew and compare."""
