"""What a client may do with its own records: judge an answer, forget a reader."""
