"""Folders: models and runs, written whole or not at all, read without running code."""
