"""Judgements out of the database and preference data into it.

``rule``: from judgements to comparisons; ``export``: comparisons as rows and files in TRL's format; ``dump``: the whole database, without
loss; ``imported``: preference data of others as prompts, answers, items and judgements; ``formats`` and ``tools``: their layouts;
``tables``: JSONL, Parquet, CSV and JSON files.
"""
