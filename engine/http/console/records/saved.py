"""Saved searches and frozen results. Of somebody else's private ones nobody learns that they are there."""

from urllib.parse import parse_qsl
from uuid import uuid4

from audit.markup import Markup, joined, table, tag
from audit.search.criteria import Criteria
from audit.search.saved import FrozenResult, FrozenRow, SavedView
from engine.errors import NotFoundError
from engine.http.console import layout
from engine.http.console.records import showing
from engine.http.console.visit import Reply, Role, SeeOther, Sheet, Visit

ADDRESS = "/console/saved"
SEARCH = "/console/search"


async def show(visit: Visit) -> Reply:
    with showing.said():
        views = await showing.saved_views(visit).seen_by(visit.who)
    if not views:
        return Sheet(
            "Saved",
            tag("p", "Nothing is saved yet. ", tag("a", "Search", href=SEARCH), " and keep what you find."),
        )
    return Sheet("Saved", tag("ul", [_item(visit, view) for view in views], class_="records"))


async def save(visit: Visit) -> Reply:
    """The filter; or with the heads of this moment, what it finds now."""
    is_shared = visit.form.get("shared") == "yes"
    if is_shared:
        visit.require(Role.LEAD)
    with showing.said():
        criteria = Criteria.read(_given(visit.form.get("filter", "")), showing.books(visit))
        views, heads, leaves = showing.saved_views(visit), None, None
        if visit.form.get("kind") == "frozen":
            sight = await showing.sight_of(visit)
            showing.check_words(sight, criteria)
            heads, leaves = await views.freeze(criteria)
            found = sum(map(len, leaves.values()))
            showing.note_read(visit, sight, criteria.words, showing.LISTED, found)
        view = SavedView(
            uuid4(), visit.who, visit.form.get("name", "").strip(), criteria.address, is_shared, visit.house.engine.clock(), heads, leaves
        )  # fmt: skip
        visit.note(
            saved={
                "view": str(view.view_id),
                "filter": criteria.words,
                "shared": is_shared,
                "heads": heads,
                "leaves": leaves,
            }
        )
        await views.save(view)
    return SeeOther(f"{ADDRESS}/{view.view_id}" if view.is_frozen else ADDRESS)


async def show_one(visit: Visit) -> Reply:
    view = await _view(visit)
    if not view.is_frozen:
        return SeeOther(f"{SEARCH}?{view.filter}")
    with showing.said():
        result = await showing.saved_views(visit).thaw(view, showing.books(visit))
    sight = await showing.sight_of(visit)
    showing.note_read(visit, sight, f"frozen result {view.view_id}", showing.LISTED, len(result.rows_here))
    return Sheet(view.name, joined(_about(view, result), _rows(sight, result), _delete(visit, view)))


async def delete(visit: Visit) -> Reply:
    view = await _view(visit)
    with showing.said():
        if not await showing.saved_views(visit).delete(visit.who, view.view_id):
            raise NotFoundError
    return SeeOther(ADDRESS)


async def _view(visit: Visit) -> SavedView:
    view_id = showing.identity(visit.place["view_id"])
    with showing.said():
        found = await showing.saved_views(visit).one(visit.who, view_id) if view_id else None
    if found is None:
        raise NotFoundError
    return found


def _given(filter_text: str) -> dict[str, str]:
    return dict(parse_qsl(filter_text, max_num_fields=50))


def _item(visit: Visit, view: SavedView) -> Markup:
    kind = "frozen result" if view.is_frozen else "filter"
    whose = "yours" if view.owner == visit.who else f"shared by {view.owner}"
    shared = ", shared" if view.is_shared and view.owner == visit.who else None
    about = tag("p", kind, " · ", whose, shared, " · ", showing.moment(view.made_at), " UTC", class_="small")
    words = tag("p", Criteria.read(_given(view.filter)).words, class_="small")
    return tag(
        "li",
        tag("p", tag("a", view.name, href=f"{ADDRESS}/{view.view_id}")),
        about,
        words,
        _delete(visit, view),
    )


def _delete(visit: Visit, view: SavedView) -> Markup | None:
    if view.owner != visit.who:
        return None
    return layout.form(
        visit,
        f"{ADDRESS}/{view.view_id}",
        tag("button", "Delete", type="submit", class_="quiet", aria_label=f"Delete {view.name}"),
    )


def _about(view: SavedView, result: FrozenResult) -> Markup:
    heads = [(month, size, tag("code", root)) for month, (size, root) in sorted((view.heads or {}).items())]
    return joined(
        tag("p", f"{Criteria.read(_given(view.filter)).words}. Frozen by {view.owner} at ", showing.moment(view.made_at),
            f" UTC: {len(result.rows)} records below the heads of that moment. It shows these and no others."),
        tag("p", f"{result.erased} of them were erased since. Their places and proofs remain.", class_="calm") if result.erased else None,
        tag("p", layout.said_by_us(f"{result.archived} of them are archived now: `affidavit audit query` reads them, `affidavit audit restore` brings them back."),
            class_="calm") if result.archived else None,
        [tag("p", layout.said_by_us(f"The tree of {month} has another root at this size than when this was frozen. Run `affidavit audit verify`."), class_="alarm", role="alert")
         for month in result.changed],
        tag("details", tag("summary", "The heads"), table(("Month", "Size", "Root"), heads, "Heads at which it was frozen")),
    )  # fmt: skip


def _rows(sight: showing.Sight, result: FrozenResult) -> Markup:
    away = [row for row in result.rows if row.found is None]
    return joined(showing.listed(sight, result.rows_here), _away(away) if away else None)


def _away(rows: list[FrozenRow]) -> Markup:
    return table(
        ("Month", "Leaf"), [(row.month, row.leaf_index) for row in rows], "Archived records of this result"
    )
