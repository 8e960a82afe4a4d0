"""Tether beside the libraries one would otherwise pick, on one machine, in one run: see ``python -m bench.peers --help``."""
