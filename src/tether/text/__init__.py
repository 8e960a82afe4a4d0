"""Text to token ids and back: one rendering for SFT, scoring and sampling."""
