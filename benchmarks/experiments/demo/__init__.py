"""What `make demo` runs: three comparisons on data that ship with a package, in at most three minutes."""
