"""Reads of personal columns over HTTP: refused where they are masked, and otherwise on the record of the request."""

from audit.access.access import Access
from audit.access.policy import Policy
from audit.errors import MaskedError
from engine.errors import MaskedReadError
from engine.models import Trail


def note_read(trail: Trail, policy: Policy, access: Access) -> None:
    """Before anything is shown."""
    try:
        policy.check(access)
    except MaskedError as masked:
        raise MaskedReadError(str(masked)) from None
    details = trail.details if isinstance(trail.details, dict) else {}
    trail.details = details | {"access": access.as_details()}
