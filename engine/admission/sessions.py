"""Conversations, if they are switched on: what was asked before helps to find what a follow-up question means.

A session belongs to the site whose key began it, and to one reader: the one that the site names (`X-End-User: user:…`),
or whoever holds the token that was said when it began. To anybody else it does not exist.

A turn is kept after its record is closed, so that a session that cannot be written costs nobody an answer: the
response says so instead.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from engine.errors import DatabaseUnavailableError, UnknownSessionError
from engine.models import Answer, Client, Question, Refusal
from engine.ports import NewId

TOKEN_BYTES = 48  # spec 001: 64 characters that nobody guesses
Cursor = psycopg.AsyncCursor[dict[str, Any]]

CONTEXT_QUESTIONS = 2  # more would drown the question that is asked now
MESSAGES_SHOWN = 500  # the newest; a conversation that goes on for longer is no conversation

_NOT_KEPT_NEW = (
    "This session could not be kept. Leave session_id out of the next question to begin another one."
)
_NOT_KEPT = "This question and its answer could not be kept in the session."

_OWNED = """id = %(id)s AND client_id = %(client_id)s
    AND CASE WHEN user_id IS NULL THEN session_token = %(token)s ELSE user_id = %(user_id)s END
    AND last_activity_at >= now() - make_interval(days => %(days)s)"""
_FIND = f"SELECT id, user_id, created_at, last_activity_at FROM chat_sessions WHERE {_OWNED}"  # noqa: S608  only our words
_DELETE = f"DELETE FROM chat_sessions WHERE {_OWNED}"  # noqa: S608
_TOUCH = "UPDATE chat_sessions SET last_activity_at = now() WHERE id = %(id)s"
_BEGIN = """
INSERT INTO chat_sessions (id, client_id, user_id, session_token)
VALUES (%(id)s, %(client_id)s, %(user_id)s, %(token)s)
"""
# Those that found something: a question that was refused leads nowhere.
_CONTEXT = """
SELECT asked.content FROM chat_messages asked JOIN chat_messages said USING (query_id)
WHERE asked.session_id = %s AND asked.book_id = %s AND asked.role = 'user' AND said.role = 'assistant'
    AND said.confidence IS NOT NULL
ORDER BY asked.number DESC LIMIT %s
"""
_SAY = """
INSERT INTO chat_messages (session_id, query_id, book_id, role, content, tokens_used, confidence)
VALUES (%(id)s, %(query_id)s, %(book_id)s, %(role)s, %(content)s, %(tokens_used)s, %(confidence)s) RETURNING id
"""
_CITE = """
INSERT INTO source_citations (message_id, chapter_id, chapter_title, relevance_score, excerpt, position)
SELECT %s, * FROM json_to_recordset(%s) AS cited(
    chapter_id text, chapter_title text, relevance_score double precision, excerpt text, position integer)
"""
_MESSAGES = """
SELECT * FROM (
    SELECT id, session_id, query_id, role, content, nullif(tokens_used, '{}') AS tokens_used, confidence, created_at,
        number, coalesce((
            SELECT json_agg(json_build_object('chapter_id', chapter_id, 'chapter_title', chapter_title,
                'relevance_score', relevance_score, 'excerpt', excerpt, 'position', position) ORDER BY position)
            FROM source_citations WHERE message_id = m.id), '[]') AS sources
    FROM chat_messages m WHERE session_id = %s ORDER BY number DESC LIMIT %s
) newest ORDER BY number
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who may go on with a session."""

    client_id: str
    user_id: UUID | None
    token: str | None

    def asking_for(self, session_id: UUID) -> dict[str, Any]:
        digest = sha256(self.token.encode()).hexdigest() if self.token else None
        return {"id": session_id, "client_id": self.client_id, "user_id": self.user_id, "token": digest}


class Sessions:
    """The tables of sql/0012_sessions.sql."""

    def __init__(self, pool: AsyncConnectionPool, days: int, new_id: NewId) -> None:
        self._pool = pool
        self._days = days
        self.new_id = new_id

    async def context(self, session_id: UUID, owner: Owner, book_id: str) -> str:
        """What this book was asked last in the session, the newest first."""
        async with self._reading() as cursor:
            await self._find(cursor, session_id, owner)
            await cursor.execute(_CONTEXT, (session_id, book_id, CONTEXT_QUESTIONS))
            return "\n".join(row["content"] for row in await cursor.fetchall())

    async def read(self, session_id: UUID, owner: Owner) -> dict[str, Any]:
        """The session with its messages."""
        async with self._reading() as cursor:
            found = await self._find(cursor, session_id, owner)
            await cursor.execute(_MESSAGES, (session_id, MESSAGES_SHOWN))
            return found | {"messages": await cursor.fetchall()}

    async def delete(self, session_id: UUID, owner: Owner) -> None:
        """It and all that was said in it."""
        async with self._reading() as cursor:
            await cursor.execute(_DELETE, self._asking(session_id, owner))
            if not cursor.rowcount:
                raise UnknownSessionError

    async def purge(self) -> int:
        """Delete what nobody came back to for so many days; how many sessions that were."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute("SELECT purge_old_chat_sessions(%s)", (self._days,))
            (deleted,) = await cursor.fetchone() or (0,)
        return int(deleted)

    async def keep(self, answer: Answer, begun_by: Owner | None) -> None:
        """Both messages of a turn and its citations, or nothing of them."""
        trail = answer.trail
        assert trail.session_id and trail.book_id
        about = {"id": trail.session_id, "query_id": trail.query_id, "book_id": trail.book_id}
        asked = about | {
            "role": "user", "content": trail.user_query_text, "tokens_used": "{}", "confidence": None
        }  # fmt: skip
        said = about | {
            "role": "assistant", "content": trail.answer_text, "tokens_used": _tokens(answer),
            "confidence": trail.confidence_score,
        }  # fmt: skip
        async with self._pool.connection() as connection, connection.transaction():
            if begun_by:
                await connection.execute(_BEGIN, begun_by.asking_for(trail.session_id))
            elif not (await connection.execute(_TOUCH, about)).rowcount:
                raise UnknownSessionError
            await connection.execute(_SAY, asked)
            (message_id,) = await (await connection.execute(_SAY, said)).fetchone() or (None,)
            await connection.execute(_CITE, (message_id, json.dumps(sources(answer))))

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Cursor]:
        try:
            async with (
                self._pool.connection() as connection,
                connection.cursor(row_factory=dict_row) as cursor,
            ):
                yield cursor
        except (psycopg.Error, PoolTimeout) as failure:
            raise DatabaseUnavailableError from failure

    async def _find(self, cursor: Cursor, session_id: UUID, owner: Owner) -> dict[str, Any]:
        await cursor.execute(_FIND, self._asking(session_id, owner))
        found = await cursor.fetchone()
        if found is None:
            raise UnknownSessionError
        return found

    def _asking(self, session_id: UUID, owner: Owner) -> dict[str, Any]:
        return owner.asking_for(session_id) | {"days": self._days}


class Turn:
    """One question of a session, from before it is searched to after its record is closed."""

    def __init__(self, sessions: Sessions, token: str | None) -> None:
        self._sessions = sessions
        self._token = token
        self._begun_by: Owner | None = None

    async def recall(self, client: Client, question: Question) -> Question:
        """The question with what came before it, or as the first of a new session."""
        user_id = user_of(question.end_user)
        if question.session_id is None:
            self._begun_by = Owner(client.client_id, user_id, secrets.token_urlsafe(TOKEN_BYTES))
            return replace(question, session_id=self._sessions.new_id())
        owner = Owner(client.client_id, user_id, self._token)
        context = await self._sessions.context(question.session_id, owner, question.book_id)
        return replace(question, context=context)

    async def kept(self, answer: Answer, within_s: float) -> Answer:
        """The answer, with the token of a new session, or with the words that say why this turn is not in it."""
        try:
            async with asyncio.timeout(max(0.0, within_s)):
                await self._sessions.keep(answer, self._begun_by)
        except (psycopg.Error, PoolTimeout, TimeoutError, ValueError, UnknownSessionError):
            return replace(answer, session_message=_NOT_KEPT_NEW if self._begun_by else _NOT_KEPT)
        begun = self._begun_by
        return replace(answer, session_token=begun.token) if begun and begun.user_id is None else answer


def user_of(end_user: str | None) -> UUID | None:
    """The reader that the site knows; None for one that it does not know."""
    kind, _, name = (end_user or "").partition(":")
    try:
        return UUID(name) if kind == "user" else None
    except ValueError:
        return None


def sources(answer: Answer) -> list[dict[str, Any]]:
    """The quotations by the names of spec 001. None in a refusal."""
    outcome = answer.outcome
    return [
        {
            "chapter_id": chapter_id(excerpt.filename),
            "chapter_title": excerpt.chapter,
            "relevance_score": min(1.0, max(0.0, excerpt.score)),
            "excerpt": excerpt.excerpt,
            "position": excerpt.n,
        }
        for excerpt in (() if isinstance(outcome, Refusal) else outcome.excerpts)
    ]


def chapter_id(filename: str) -> str:
    """`module-1/chapter-2` of `module-1/chapter-2.md`: the page's own name, unique in its book."""
    return str(PurePosixPath(filename).with_suffix(""))


def _tokens(answer: Answer) -> str:
    spent, said = answer.trail.tokens_input or 0, answer.trail.tokens_output or 0
    return json.dumps({"input": spent, "output": said, "total": spent + said})
