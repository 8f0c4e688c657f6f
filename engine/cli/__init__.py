"""The console script `affidavit`: one file for each group of commands, and the doctor."""
