"""Pages on which records are found and read."""

from engine.http.console.records import record, saved, search
from engine.http.console.visit import ConsolePage

PAGES = (
    ConsolePage("/console/search", search.show, navigation="Search", act=search.paste, act_only_reads=True),
    ConsolePage("/console/saved", saved.show, navigation="Saved", act=saved.save),
    ConsolePage("/console/saved/{view_id}", saved.show_one, act=saved.delete),
    ConsolePage("/console/records/{query_id}", record.show),
    ConsolePage("/console/records/{query_id}/proof", record.proof),
)
