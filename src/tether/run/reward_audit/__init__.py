"""Is a reward model worth trusting? What it gets right, what it looks at, what it should not see, and what fools it.

    scorer       any reward model as the audit sees it: texts in, scores or refusals out
    pairs        judged pairs of a file, without prompts that the model was trained on
    figures      accuracy, calibration, the baseline of length, what explains the scores, slices
    stress       the same text in other company and in other words; probes
    variations   rewritings that mean the same, and answers that nobody should prefer
    verdict      flags and sentences
    audit        all of it as one dictionary; ``report.reward_audit`` makes the page
"""
