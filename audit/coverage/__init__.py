"""What the log covers, for people: its months in all tiers as a picture, alarms, verifications. No verdict is made here."""
