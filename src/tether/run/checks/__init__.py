"""Checks of an online stage while it trains.

    texts    what a set of answers looks like: repetition, distinct answers, lengths against rewards
    look     one look at the panel, as a record
    rules    pure functions over looks: what trips, and how often it would by chance
    panel    takes a look: fixed held-out prompts, fixed randomness
    evidence what is written when a rule trips, and what was acknowledged
    watch    looks when due, judges, writes, pauses
    stage    a watch from the settings of a run

The first three and ``evidence`` import no torch: ``tether audit`` uses them on the texts of any trainer.
"""
