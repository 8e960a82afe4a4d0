"""Rows of data files to demonstrations, comparisons and prompts, in TRL's formats; JSONL in and out.

A row that cannot be read is a sentence in one DataError that lists all of them; rows are counted from 1. No
torch here.
"""

from tether.records.jsonl import file_sha256, iter_jsonl, read_jsonl, read_lines, write_jsonl
from tether.records.problems import refuse_bad_rows
from tether.records.rankings import ranking_from_row, read_judgements
from tether.records.rows import (
    comparison_from_row,
    demonstration_from_row,
    feedback_from_row,
    prompt_from_row,
    read_comparisons,
    read_demonstrations,
    read_feedback,
    read_prompts,
)

__all__ = [
    "comparison_from_row",
    "demonstration_from_row",
    "feedback_from_row",
    "file_sha256",
    "iter_jsonl",
    "prompt_from_row",
    "ranking_from_row",
    "read_comparisons",
    "read_demonstrations",
    "read_feedback",
    "read_jsonl",
    "read_judgements",
    "read_lines",
    "read_prompts",
    "refuse_bad_rows",
    "write_jsonl",
]
