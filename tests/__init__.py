"""Tests in four tiers, each in a folder by what it needs: cheap and pure ones first, long and violent ones last.

    pure/       no database, no other process, no network: parsers, canonical texts, trees, gates, settings
    parts/      one room with the real parts that it needs: PostgreSQL, the index's workers, S3, a vendor's interface
    product/    the whole product, over HTTP, at the command line, and in a browser
    campaigns/  kills, crashes, outages, and the Docusaurus plugin with its own tests and real sites: minutes each

`make test` runs the first three; `make campaign` the fourth, and of the others those marked `campaign`, and those marked
`rounds`, which do more in a campaign (`CAMPAIGN_ROUNDS`, 1 for the short one of .ci/run). One tier or one room: `pytest tests/pure`, `pytest tests/parts/ledger`.

What several tests share is in modules named by what they are: `conftest` (one PostgreSQL with the sample book, a house, a
server), `prepared` (their data folder, made once and copied), `build`, `asking`, `in_process`, `command_line`, `databases`, `labelled`, `logs/`, `upstreams/` (servers that speak
a vendor's interface). No test imports from a test. Data of our own is in `data/`; what is published is used as well, where
it is beside the checkout in ../shared, and only in addition.
"""

import os
import sys

# Whatever the shell asks for: to rewrite the assertions of all these files takes ten seconds, and every worker does it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
