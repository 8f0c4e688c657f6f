"""The process that draws charts for the console's pages, at a low priority: in the process that serves, readers would wait for it.

It keeps what it has drawn and counted. A page is drawn again only if something was sealed, anchored, counted or erased since, so
none shows more or less than the log has.
"""

import os
import pickle
import signal
from collections import OrderedDict
from dataclasses import dataclass, field

from audit import worker
from audit.charts.drawing.drawn import csv
from audit.charts.drawing.page import sections
from audit.charts.figures.catalogue import NAMES, chart_of
from audit.charts.figures.chart_log import ChartLog, LiveCounts
from audit.charts.rollups import stored
from audit.errors import AuditError
from engine.errors import StatementError
from engine.wiring.charts import DRAW_S, WantedDrawing, open_chart_log

NICE = 5  # readers get the processor first
KEPT = 32  # pages of some hundred kilobytes


@dataclass(slots=True)
class Drawing:
    _kept: OrderedDict[object, str] = field(default_factory=OrderedDict)
    _live: LiveCounts = field(default_factory=LiveCounts)

    def drawn(self, wanted: WantedDrawing) -> str:
        settings, database = wanted.database.settings, wanted.database
        with open_chart_log(settings, database, wanted.choice, DRAW_S, self._live) as log:
            place = (wanted.choice, wanted.address, wanted.name, stored.state(log.connection))
            if place not in self._kept:
                self._kept[place] = _drawn(wanted, log)
            self._kept.move_to_end(place)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return self._kept[place]


def _drawn(wanted: WantedDrawing, log: ChartLog) -> str:
    prices = wanted.database.settings.prices
    names = [wanted.name] if wanted.name else NAMES
    made = [chart_of(name, log, prices.by_model, prices.currency) for name in names]
    return csv(made[0]) if wanted.name else str(sections(made, wanted.choice, wanted.address))


def _run() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(NICE)
    source, sink = worker.channel()
    drawing = Drawing()

    def answer(_: bytes, request: bytes) -> worker.Message:
        wanted: WantedDrawing = pickle.loads(request)  # noqa: S301  from the process that serves
        try:
            return b"", drawing.drawn(wanted).encode()
        except (AuditError, StatementError) as failure:
            return b"failed", pickle.dumps(failure)

    worker.serve(source, sink, answer)


if __name__ == "__main__":
    _run()
