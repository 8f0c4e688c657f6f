"""The contracts of the specifications' chat widgets over the one pipeline, one file for each specification.

A new contract is a file here and its line below.
"""

from engine.http.widgets import spec_000, spec_001, spec_002, spec_003, spec_004
from engine.http.widgets.contract import Contract

CONTRACTS: tuple[Contract, ...] = (
    *spec_000.CONTRACTS,
    *spec_001.CONTRACTS,
    *spec_002.CONTRACTS,
    *spec_003.CONTRACTS,
    *spec_004.CONTRACTS,
)
