"""What the page to ask on needs beside the questions: the books of a key, their example questions, and passages in context."""
