"""Rewards: what scores a rollout.

    rubric            weighted parts -> one score per rollout, every component kept, faults counted apart from wrong answers
    early             parts that wait (on a sandbox, a judge) are asked while other answers are still generated
    exact             an answer column and a stated extraction rule
    format, length    patterns and endings; a band of lengths, the overlong penalty of DAPO
    learned           a reward model
    features, linear  named numbers of an answer, and a reward model that weighs them, readable as a table
    simulated_rater   Plainspoken v1: a written rule with stated noise; judges the bundled comparisons, and evaluates
    build             parts by the names of the configuration

Importing this package imports no torch; ``learned`` reaches the models only when it is built.
"""
