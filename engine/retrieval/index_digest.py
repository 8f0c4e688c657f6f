"""Digests of what an index holds: of a point, and of a whole generation, whatever the order of its points. Pure."""

import json
from hashlib import sha256
from typing import Any

import numpy as np

from engine.models import Point


def of_point(point: Point) -> bytes:
    """Exact to the bit: vector stores keep unit vectors as they are sent, so what comes back is what was sent."""
    terms = dict(sorted(point.terms.items()))
    parts = (
        json.dumps([point.chunk_id, point.payload], sort_keys=True, separators=(",", ":")).encode(),
        np.asarray(point.windows.shape, "<u4").tobytes(),
        np.ascontiguousarray(point.windows, "<f4").tobytes(),
        np.fromiter(terms.keys(), "<u4", len(terms)).tobytes(),
        np.fromiter(terms.values(), "<f4", len(terms)).tobytes(),
    )
    return sha256(b"".join(sha256(part).digest() for part in parts)).digest()


def of_points(digests: "np.ndarray[Any, np.dtype[np.bytes_]]") -> str:
    """Of the digests as an array of 32 bytes each: a book may have millions."""
    return sha256(np.sort(digests).view(np.uint8).data).hexdigest()
