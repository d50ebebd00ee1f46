"""Benchmarks that put the paper's numbers beside ours: `python -m benchmarks --help`."""
