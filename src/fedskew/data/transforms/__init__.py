"""From stored samples to what a network sees."""
