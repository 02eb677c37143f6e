"""Ranks: who has which rows, and sums over all of them."""
