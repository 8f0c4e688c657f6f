"""What is known of words: the languages, their function words and their forms (pure)."""
