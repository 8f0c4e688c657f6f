"""Who sees personal columns, as the operator decided: one rule for commands, the interface and the console. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from audit.access.access import Access
from audit.errors import MaskedError

LEAD = "lead"


@dataclass(frozen=True, slots=True)
class Policy:
    """For `masked_roles` personal columns are masked unless they give a basis and, with `second_person`, a lead approves."""

    masked_roles: frozenset[str] = frozenset()
    basis_required: bool = False  # of everybody
    second_person: bool = False
    leads: Collection[str] = ()  # logins of the database
    approval: timedelta = timedelta(hours=1)

    def masks(self, role: str | None) -> bool:
        return role in self.masked_roles

    def check(self, access: Access) -> None:
        """`MaskedError` if this may not be shown."""
        if not access.columns:
            return
        columns, is_masked = ", ".join(sorted(access.columns)), self.masks(access.role)
        if (is_masked or self.basis_required) and not (access.basis or "").strip():
            raise MaskedError(
                f"These personal columns are shown only for a recorded reason: {columns}. Give a basis, or leave them out."
            )
        if is_masked and self.second_person and not access.second:
            raise MaskedError(
                f"These personal columns are shown only if a second person approves: {columns}. Ask for it, and repeat this"
                " with the approval."
            )
