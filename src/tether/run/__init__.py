"""The loops: the only place that puts sampling, scoring, algorithms, models and files together."""
