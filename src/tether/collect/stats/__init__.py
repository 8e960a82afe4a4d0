"""What a set of human judgements is worth: pure functions of records, no database.

    votes         judgements -> columns of numbers
    agreeing      raw agreement, kappa, alpha, rates; one bootstrap over prompts
    ceiling       how often the best possible reward model can agree with a single judgement
    reliability   people against the rest, known answers and themselves; one-coin Dawid-Skene
    bias          position and length
    speed         hasty judgements, the share of them of each person, and pauses
    conduct       who is named, for what, and what to do
    spelled       numbers with their units
    transitivity  cycles among the answers to one prompt
    figures       the registry: unit, meaning, good band, advice
    summary       all of it as one record; sentences, words and page show it
    plan          how many judgements an interval needs
    command       a store or a simulated study -> what the command line prints
"""

from __future__ import annotations

from tether.collect.stats.plan import Plan, plan_ceiling, plan_share
from tether.collect.stats.summary import CollectSummary, summarise

__all__ = ["CollectSummary", "Plan", "plan_ceiling", "plan_share", "summarise"]
