"""Algorithms as choices of parts. They read tokens and rewards, never text, engines or files."""
