"""A session store in PostgreSQL, for conversations: earlier questions give a follow-up question its context.

A session belongs to the client whose key started it, and to one reader: the one that the client names, or the bearer of
the token that was returned when the session started. For all others it does not exist, nor for a key of that client that
is not for all books that the session is about.

A turn is stored after its audit record is closed, so that a failing session store costs no answer: the response says
that the turn was not stored.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from engine.admission.end_user import user_id_of
from engine.errors import UnderHoldError, UnknownSessionError
from engine.models import Answer, Client, Question, Refusal
from engine.ports import NewId
from engine.storage.database import CLEANUP_S, borrowed

HELD = "AF002"  # the SQLSTATE with which the database refuses what a hold covers: sql/0031_holds.sql
TOKEN_BYTES = 48  # 64 characters, as specification 001 demands
Cursor = psycopg.AsyncCursor[dict[str, Any]]

CONTEXT_QUESTIONS = 2  # more would outweigh the current question
MESSAGES_SHOWN = 500  # the newest ones: it bounds the response of a very long session

_NEW_SESSION_NOT_STORED = (
    "This session could not be stored. Leave out session_id in the next question to start a new one."
)
_TURN_NOT_STORED = (
    "This question and its answer could not be stored in the session. The next question can use it as before."
)
_BEGUN_ANEW = "The earlier conversation could not be continued, so a new one begins here."

_OWNED = """id = %(id)s AND client_id = %(client_id)s
    AND CASE WHEN user_id IS NULL THEN session_token = %(token)s ELSE user_id = %(user_id)s END
    AND last_activity_at >= now() - make_interval(days => %(days)s)
    AND (%(books)s::text[] = '{}' OR NOT EXISTS (
        SELECT FROM chat_messages m WHERE m.session_id = chat_sessions.id AND m.book_id <> ALL (%(books)s::text[])))"""
_FIND = f"SELECT id, user_id, created_at, last_activity_at FROM chat_sessions WHERE {_OWNED}"  # noqa: S608  our own names
_DELETE = f"DELETE FROM chat_sessions WHERE {_OWNED}"  # noqa: S608
_TOUCH = "UPDATE chat_sessions SET last_activity_at = now() WHERE id = %(id)s"
_BEGIN = """
INSERT INTO chat_sessions (id, client_id, user_id, session_token)
VALUES (%(id)s, %(client_id)s, %(user_id)s, %(token)s)
"""
# Answered questions only: a refused one gives no context.
_CONTEXT = """
SELECT asked.content FROM chat_messages asked JOIN chat_messages replied USING (query_id)
WHERE asked.session_id = %s AND asked.book_id = %s AND asked.role = 'user' AND replied.role = 'assistant'
    AND replied.confidence IS NOT NULL
ORDER BY asked.number DESC LIMIT %s
"""
_ADD_MESSAGE = """
INSERT INTO chat_messages (session_id, query_id, book_id, role, content, tokens_used, confidence)
VALUES (%(id)s, %(query_id)s, %(book_id)s, %(role)s, %(content)s, %(tokens_used)s, %(confidence)s) RETURNING id
"""
_ADD_CITATIONS = """
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
    """The credentials of a session's owner."""

    client: Client
    user_id: UUID | None
    token: str | None

    def parameters(self, session_id: UUID) -> dict[str, Any]:
        digest = sha256(self.token.encode()).hexdigest() if self.token else None
        return {
            "id": session_id, "client_id": self.client.client_id, "books": sorted(self.client.books),
            "user_id": self.user_id, "token": digest,
        }  # fmt: skip


class Sessions:
    """A repository over the tables of sql/0012_sessions.sql."""

    def __init__(self, pool: AsyncConnectionPool, days: int, new_id: NewId) -> None:
        self._pool = pool
        self._days = days
        self.new_id = new_id

    async def context(self, session_id: UUID, owner: Owner, book_id: str) -> str:
        """The last questions of the session about this book, the newest first."""
        async with self._cursor() as cursor:
            await self._find(cursor, session_id, owner)
            await cursor.execute(_CONTEXT, (session_id, book_id, CONTEXT_QUESTIONS))
            return "\n".join(row["content"] for row in await cursor.fetchall())

    async def read(self, session_id: UUID, owner: Owner) -> dict[str, Any]:
        """The session with its messages."""
        async with self._cursor() as cursor:
            found = await self._find(cursor, session_id, owner)
            await cursor.execute(_MESSAGES, (session_id, MESSAGES_SHOWN))
            return found | {"messages": await cursor.fetchall()}

    async def delete(self, session_id: UUID, owner: Owner) -> None:
        """Deletes the session with all its messages."""
        async with self._cursor() as cursor:
            try:
                await cursor.execute(_DELETE, self._parameters(session_id, owner))
            except psycopg.Error as failure:
                if failure.sqlstate == HELD:
                    raise UnderHoldError from None
                raise
            if not cursor.rowcount:
                raise UnknownSessionError

    async def purge(self) -> int:
        """Deletes the sessions that have been inactive for the configured days, and returns their number."""
        return await self._scalar("SELECT purge_old_chat_sessions(%s)")

    async def held(self) -> int:
        """The number of those that stay, because a hold covers them."""
        return await self._scalar("SELECT audit_held_sessions(%s)")

    async def _scalar(self, statement: LiteralString) -> int:
        async with self._pool.connection() as connection:
            (found,) = await (await connection.execute(statement, (self._days,))).fetchone() or (0,)
        return int(found)

    async def store(self, answer: Answer, new_owner: Owner | None) -> None:
        """Stores both messages of a turn and its citations in one transaction."""
        trail = answer.trail
        assert trail.session_id and trail.book_id
        shared = {"id": trail.session_id, "query_id": trail.query_id, "book_id": trail.book_id}
        question = shared | {
            "role": "user", "content": trail.user_query_text, "tokens_used": "{}", "confidence": None
        }  # fmt: skip
        reply = shared | {
            "role": "assistant", "content": trail.answer_text, "tokens_used": _tokens(answer),
            "confidence": trail.confidence_score,
        }  # fmt: skip
        async with self._pool.connection() as connection, connection.transaction():
            if new_owner:
                await connection.execute(_BEGIN, new_owner.parameters(trail.session_id))
            elif not (await connection.execute(_TOUCH, shared)).rowcount:
                raise UnknownSessionError
            await connection.execute(_ADD_MESSAGE, question)
            (message_id,) = await (await connection.execute(_ADD_MESSAGE, reply)).fetchone() or (None,)
            await connection.execute(_ADD_CITATIONS, (message_id, _citations(answer)))

    @asynccontextmanager
    async def _cursor(self) -> AsyncIterator[Cursor]:
        async with borrowed(self._pool) as connection, connection.cursor(row_factory=dict_row) as cursor:
            yield cursor

    async def _find(self, cursor: Cursor, session_id: UUID, owner: Owner) -> dict[str, Any]:
        await cursor.execute(_FIND, self._parameters(session_id, owner))
        found = await cursor.fetchone()
        if found is None:
            raise UnknownSessionError
        return found

    def _parameters(self, session_id: UUID, owner: Owner) -> dict[str, Any]:
        return owner.parameters(session_id) | {"days": self._days}


class Turn:
    """One question of a session: its context before retrieval, and its storage after the audit record is closed."""

    def __init__(self, sessions: Sessions, token: str | None, *, may_begin_anew: bool = False) -> None:
        self._sessions = sessions
        self._token = token
        self._may_begin_anew = may_begin_anew
        self._new_owner: Owner | None = None
        self._message: str | None = None

    async def recall(self, client: Client, question: Question) -> Question:
        """The question with the context of its session, or as the first one of a new session."""
        user_id = user_id_of(question.end_user)
        if question.session_id is None:
            self._new_owner = Owner(client, user_id, secrets.token_urlsafe(TOKEN_BYTES))
            self._message = _BEGUN_ANEW if question.session_not_continued else None
            return replace(question, session_id=self._sessions.new_id())
        owner = Owner(client, user_id, self._token)
        try:
            context = await self._sessions.context(question.session_id, owner, question.book_id)
        except UnknownSessionError:
            if not self._may_begin_anew:
                raise
            lost = replace(question, session_id=None, session_not_continued=str(question.session_id))
            return await self.recall(client, lost)
        return replace(question, context=context)

    async def kept(self, answer: Answer, within_s: float) -> Answer:
        """Stores the turn. The answer carries a new session's token, or the message that the turn was not stored."""
        first_s = max(0.0, within_s - CLEANUP_S)
        try:
            # Cancelled once, psycopg waits up to ten seconds for a server that hangs; cancelled again, it gives up.
            async with asyncio.timeout(first_s + CLEANUP_S), asyncio.timeout(first_s):
                await self._sessions.store(answer, self._new_owner)
        except (psycopg.Error, PoolTimeout, TimeoutError, ValueError, UnknownSessionError):
            return replace(
                answer, session_message=_NEW_SESSION_NOT_STORED if self._new_owner else _TURN_NOT_STORED
            )
        new_owner = self._new_owner
        token = None if new_owner is None or new_owner.user_id else new_owner.token
        return replace(answer, session_token=token, session_message=self._message)


def _citations(answer: Answer) -> str:
    """Rows of `source_citations` as JSON; none for a refusal."""
    outcome = answer.outcome
    return json.dumps([
        {
            "chapter_id": item.chapter_id, "chapter_title": item.chapter,
            "relevance_score": min(1.0, max(0.0, item.score)), "excerpt": item.excerpt, "position": item.n,
        }
        for item in (() if isinstance(outcome, Refusal) else outcome.excerpts)
    ])  # fmt: skip


def _tokens(answer: Answer) -> str:
    spent, said = answer.trail.tokens_input or 0, answer.trail.tokens_output or 0
    return json.dumps({"input": spent, "output": said, "total": spent + said})
