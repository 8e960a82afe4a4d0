"""What a set of human judgements is worth."""
