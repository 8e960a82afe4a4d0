"""Rows to batches: load, limit, pad, pack, and the position in the data. Only batches and packing import
torch.
"""
