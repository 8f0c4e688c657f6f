"""What every vector store needs to know of a point."""

from uuid import UUID

import numpy as np

from engine.models import Point


def point_id(chunk_id: str) -> str:
    """A point id must be a UUID: the first half of the passage's hash."""
    return str(UUID(hex=chunk_id[:32]))


def check(point: Point) -> None:
    """A store takes a NaN, a zero vector or an empty one without a word, and then answers nonsense."""
    norms = np.linalg.norm(point.windows, axis=1) if point.windows.size else np.zeros(1)
    if not np.all(np.isfinite(norms)) or np.any(norms == 0):
        raise ValueError(f"Passage {point.chunk_id} has no usable vector")
    if any(not np.isfinite(weight) for weight in point.terms.values()):
        raise ValueError(f"Passage {point.chunk_id} has an unusable weight")
