"""Fair queue: round robin over clients, and first in, first out for each (pure). A client's flood delays only its own."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Unbounded: the turnstile counts who comes in."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Item]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, client_id: str, item: Item) -> None:
        self._of.setdefault(client_id, deque()).append(item)

    def take(self) -> Item:
        """The oldest of the client whose turn it is, which then comes last."""
        client_id, items = self._of.popitem(last=False)
        item = items.popleft()
        if items:
            self._of[client_id] = items
        return item

    def remove(self, client_id: str, item: Item) -> None:
        items = self._of[client_id]
        items.remove(item)
        if not items:
            del self._of[client_id]
