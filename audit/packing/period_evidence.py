"""The log over the months of a period alone, for the verifier: a package of one day does not read ten years of leaves."""

from dataclasses import dataclass
from datetime import date

from audit.anchored import Chain
from audit.checking.evidence import StoredEvidence


@dataclass(slots=True)
class PeriodEvidence(StoredEvidence):
    """Its snapshot is also that of the records that are packed."""

    def months(self) -> list[date]:
        return [month for month in StoredEvidence.months(self) if self.is_in_period(month)]

    def anchors(self, month: date) -> Chain:
        """As the vault listed them before the snapshot was taken: an anchor that came later looks like a lost head."""
        return self._anchors_of(month).chain()
