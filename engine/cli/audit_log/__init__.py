"""Commands of the audit log: reading, checking, archiving, erasing, holding, handing over."""
