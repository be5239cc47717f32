"""Datasets, transforms and decoding. Imports nothing else of ours but ``extras``."""
