"""A witness (C2SP tlog-witness): signs a log's head only if the log has done nothing but grow since the last one.

An auditor runs it on a machine of their own: `affidavit witness`, or `python -m audit.witness` with Python's standard
library and `cryptography` alone. Whoever later finds a head with this signature knows that no other history of that size
was signed here, even if the log's machine, its database and its vault were all set back to an older copy.

    judgement     one request, judged (pure but for the memory)
    memory        the last head of each log on disk, and the proofs of forks
    server        HTTP
"""
