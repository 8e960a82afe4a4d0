"""Is a reward model worth trusting? What it gets right, what it looks at, what it should not see, and what fools it.

    scorer       any reward model as the audit sees it: texts in, scores or refusals out
    pairs        judged pairs of a file or a database, without prompts that the model was trained on
    votes        the single judgements of a database beside them
    judged       the pairs beside their scores
    figures      accuracy, calibration, the baseline of length, what explains the scores
    position     does the place on the judges' page decide what they say?
    slices       accuracy by column, annotator, side, length
    stress       the same text in other company and in other words; probes
    variations   rewritings that mean the same, and answers that nobody should prefer
    unlike       answers unlike those of the training (``training_texts``), by hidden states and by words
    verdict      flags and sentences
    audit        all of it as one dictionary; ``report.reward_audit`` makes the page
"""
