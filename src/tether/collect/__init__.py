"""People compare answers: a database of prompts, answers and judgements, the web page that asks, and what the judgements are worth.

Importing it loads no torch, not even indirectly: the page starts at once, on a machine without a GPU. What needs a model (drawing answers,
scoring them for the choice of the next pair) is in `tether.run` and writes its results into the same database.
"""
