"""What a person at a terminal meets: first mistakes, tables, colour, completion."""
