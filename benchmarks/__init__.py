"""Benchmarks: `python -m benchmarks NAME` stores its rows in results/NAME.json."""
