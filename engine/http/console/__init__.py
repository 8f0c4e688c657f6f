"""The console: the pages that auditors open, for those who signed in with a key of the scope `audit`.

To add a page, write `engine/http/console/<page>.py` and add its line to `PAGES`:

    async def show(visit: Visit) -> Reply:
        async with borrowed(visit.house.console_pool) as connection: …        # the auditor's role; statements end in time
        visit.note_access(filter=…, columns=["user_query_text"], records=25)  # where it shows personal columns
        return Sheet("Charts", joined(tag("p", "Asked by ", tag("b", client_id)), table(headings, rows, caption)))

`Visit` (visit.py) has the client, its role, the trail that becomes the request's row, the query and the form's fields, and the
`House` with the parts that wiring/ gave it; what a page needs besides is a new field there. What a page returns is a `Sheet` in the
layout, a `Download` such as a CSV, or `SeeOther`. Texts given to `tag` are escaped; SVG that a room of `audit` draws with
`audit.markup` goes in as it is. There is no script and no style in a page: classes are in assets/console.css, and a script
is a file beside it, named in the sheet's `scripts`.

A POST is `act` of the `ConsolePage`; make its form with `layout.form(visit, action, …)`. When `act` runs, the origin and the session's token
have been checked. `role` is the least that may see the page, `act_role` the least that may send its form, `visit.require(role)`
for what depends on more. A page raises errors of engine/errors.py, such as `InvalidFieldError`, which become a page that says so.
Each request leaves one row (endpoint: the page's `path`); `visit.note(…)` adds to its details. Everything is done within the
seconds that a request has; what takes longer is started by a POST and shown by a page with `refresh_s`.
"""

from engine.http.console import access, charts, coverage, records, reports, reviews
from engine.http.console.visit import ConsolePage

PAGES = (
    ConsolePage("/console", coverage.show, navigation="Coverage"),
    ConsolePage(coverage.VERIFICATION, coverage.show_verification, act=coverage.verify),
    ConsolePage("/console/charts", charts.show, navigation="Charts"),
    ConsolePage("/console/charts/{name}", charts.download),
    *reviews.PAGES,
    *records.PAGES,
    ConsolePage(access.PATH, access.show, navigation="Who read what"),
    ConsolePage(access.REQUESTS, access.show_requests, act=access.act),
    ConsolePage("/console/reports", reports.show, navigation="Reports"),
    ConsolePage("/console/reports/{name}", reports.download),
)  # fmt: skip
