"""Reports for auditors: what the log shows of each control, with the query that measured it and the head that it was measured at."""
