"""The console script `affidavit`: one file for each group of commands; main.py has the parser, output.py the printing."""
