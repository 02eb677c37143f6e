"""Kernel, bandwidths and ridge, chosen on a sample of the rows."""
