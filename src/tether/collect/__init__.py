"""People compare answers: a database of prompts, answers and judgements, the web page that asks, and what the judgements are worth.

No torch here, not even indirectly: a labeller's laptop needs no GPU stack. What needs a model (drawing answers, scoring them for the
choice of the next pair) is in `tether.run` and writes its results into the same database.
"""
