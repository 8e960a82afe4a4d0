"""Measurements that anyone can repeat: ``python -m bench.seeds recipes/quickstart.toml``."""
