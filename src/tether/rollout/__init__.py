"""Collecting rollouts: the Sampler seam, the local and the scripted sampler, and ``collect``. Torch loads
on first use.
"""

from .randomness import request_key, uniforms
from .rollouter import collect
from .sampler import Sampler, check_requests, check_sampling
from .scripted import ScriptedSampler

__all__ = [
    "Sampler",
    "ScriptedSampler",
    "check_requests",
    "check_sampling",
    "collect",
    "request_key",
    "uniforms",
]
