"""A log of millions of records for the console's benchmark, made by PostgreSQL itself: a year that ends today.

Records have all columns that are counted, texts of about 200 characters, a conversation of five turns, quotations of the sample
book. Twelve clients, each of one of five books. The words are those of the sample book, few of them common and most rare; some
records are in Arabic and in Chinese. The leaves of some records of each month are what `verify` computes; the others have hashes that prove
nothing. All heads have the real root of their leaves and a real signature. The newest records are in no rollup yet, as in a day's run.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import LiteralString

import psycopg
from psycopg import sql

from audit.checking.evidence import COLUMNS, rows_statement
from audit.ledger.partitions import month_start, next_month, partition_name
from audit.proof.checkpoint import Checkpoint, sign_note
from audit.proof.keys import SigningKey
from audit.proof.merkle import Frontier
from audit.proof.record import leaf_hash

AT_ONCE = 2  # connections that make a month each
UNCOUNTED = 9_000  # leaves of the newest month that are in no rollup: fewer than make the next one due
PROVEN = 5  # records of each month whose leaf can be recomputed
RARE, UNCOMMON, COMMON = (
    "zygapophysis",
    "ferrofluid",
    "what",
)  # in 12 records, in one of 10,000, in all in English
ARABIC, CHINESE = "الروبوت", "机器人"  # in one record of a hundred or so

_WORDS: LiteralString = """
CREATE TEMP TABLE words AS SELECT word, row_number() OVER (ORDER BY count(*) DESC, word) - 1 AS place
FROM chunks, regexp_split_to_table(lower(text), '[^a-z]+') AS word WHERE length(word) > 1 GROUP BY word;
CREATE TEMP TABLE arabic AS SELECT word, row_number() OVER () - 1 AS place FROM regexp_split_to_table(
    'الروبوت المستشعر السرعة الزاوية القياس الدوران العجلة المحرك التوازن الذراع القوة المفصل النظام التحكم الحركة الكاميرا', ' ') AS word;
CREATE TEMP TABLE chinese AS SELECT word, row_number() OVER () - 1 AS place FROM regexp_split_to_table(
    '机器人 传感器 测量 加速度 旋转 角速度 控制 系统 关节 平衡 摄像头 运动 电机 力矩 手臂 导航', ' ') AS word;
CREATE TEMP TABLE sentences AS SELECT n, CASE n % 100
    WHEN 0 THEN (SELECT string_agg(word, ' ' ORDER BY random()) FROM arabic WHERE (place + n / 100) % 2 = 0) || '.'
    WHEN 1 THEN (SELECT string_agg(word, '' ORDER BY random()) FROM chinese WHERE (place + n / 100) % 2 = 0) || '。'
    ELSE (SELECT string_agg(word, ' ') FROM (SELECT floor((SELECT count(*) FROM words) * power(random(), 2.5))::int AS place
          FROM generate_series(1, 9 + n * 0)) AS chosen JOIN words USING (place)) || '.' END AS text
FROM generate_series(0, 4999) AS n;
CREATE TEMP TABLE passages AS SELECT row_number() OVER (ORDER BY chunk_id) - 1 AS n, chunk_id, left(text, 60) AS excerpt,
    jsonb_build_array(jsonb_build_object('chunk_id', chunk_id, 'score', 0.81, 'similarity', 0.83, 'lexical', 0.5)) AS near
FROM chunks;
ANALYZE sentences, passages;
"""
_ROWS: LiteralString = """
INSERT INTO {} (log_id, query_id, answer_id, session_id, request_id, end_user, key_id, user_query_text, source_mode, answer_text, citations,
    chunks_returned, "timestamp", client_id, book_id, endpoint, http_status, success, outcome, reason, best_score, threshold, confidence_score,
    confidence_level, retrieval_latency_ms, generation_latency_ms, total_latency_ms, tokens_input, tokens_output, model_used, prompt_sha256,
    settings_sha256, code_version, calibration_id, embedder, index_generation, schema_version, salt, leaf_hash)
SELECT uuidv7(at - now()), uuidv7(at - now()), uuidv7(at - now()), md5(%(month)s || number / 5)::uuid, left(md5(%(month)s || number), 20),
    'student-' || number %% 20000, 'key-' || number %% 12,
    CASE WHEN number %% 100 < 2 THEN asked.text ELSE 'What does ' || asked.text END || CASE WHEN number = 12 THEN ' zygapophysis'
        WHEN number %% 10000 = 77 THEN ' ferrofluid' ELSE '' END, 'full-book', first.text || ' ' || second.text,
    jsonb_build_array(jsonb_build_object('n', 1, 'chapter', 'Chapter ' || number %% 40, 'score', r, 'chunk_id', chunk_id, 'excerpt', excerpt,
        'start', 0, 'end', length(excerpt))), near, at, 'client-' || number %% 12, 'book-' || number %% 12 %% 5, '/v1/query', 200, true,
    CASE WHEN r < 0.2 THEN 'refused' WHEN r > 0.98 THEN 'failed' ELSE 'answered' END,
    CASE WHEN r < 0.1 THEN 'not_covered' WHEN r < 0.2 THEN 'citation_failed' END, 0.4 + r * 0.6, 0.6, r, CASE WHEN r > 0.85 THEN 'high' ELSE 'low' END,
    (10 + 60 * random())::int, (200 * exp(2 * random()))::int, (260 * exp(2 * random()))::int, (2000 * random())::int, (300 * random())::int,
    'model-' || number %% 2, 'prompt', 'settings', '0.1.0', 'calibration', 'minilm', '0198c0de-0000-7000-8000-000000000001', 2,
    sha256('salt'), sha256((%(month)s || number)::bytea)
FROM (SELECT number, random() AS r, %(begin)s::timestamptz + (number + 0.5) / %(count)s * (%(end)s::timestamptz - %(begin)s::timestamptz) AS at
    FROM generate_series(0, %(count)s - 1) AS number) AS made
JOIN sentences AS asked ON asked.n = made.number * 7 %% 5000 JOIN sentences AS first ON first.n = (made.number * 31 + 2) %% 5000
JOIN sentences AS second ON second.n = (made.number / 5000 * 17 + made.number) %% 5000
JOIN passages ON passages.n = made.number %% (SELECT count(*) FROM passages)
ORDER BY number
"""
_LEAVES: LiteralString = """
INSERT INTO audit_leaves SELECT %(month)s::date, row_number() OVER (ORDER BY timestamp) - 1, log_id, leaf_hash, timestamp + interval '4 seconds'
FROM {}
"""
_HASHES = "SELECT leaf_hash FROM audit_leaves WHERE month = %s ORDER BY leaf_index"


@dataclass(frozen=True, slots=True)
class MadeLog:
    """What to make: so many records in each of these months, until a moment of the last one."""

    url: str
    months: list[date]
    count: int
    key: SigningKey
    until: datetime

    @classmethod
    def of(cls, url: str, rows: int, key: SigningKey, now: datetime) -> "MadeLog":
        months = months_until(now.date())
        return cls(url, months, rows // len(months), key, now - timedelta(hours=1))

    def make(self) -> None:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(self._make_some, range(AT_ONCE)))
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE audit_logs, audit_leaves")

    def _make_some(self, first: int) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SET session_replication_role = replica"
            )  # the triggers' work is of no use here
            connection.execute(
                "SET synchronous_commit = off; SET work_mem = '64MB'; SET maintenance_work_mem = '512MB'"
            )
            connection.execute(_WORDS)
            for month in self.months[first::AT_ONCE]:
                connection.execute("SELECT audit_make_month(%s)", (month,))
                self._make_month(connection, month)

    def _make_month(self, connection: psycopg.Connection, month: date) -> None:
        table = sql.Identifier(partition_name(month))
        begin, end = month_start(month), min(month_start(next_month(month)), self.until)
        given = {"month": str(month), "count": self.count, "begin": begin, "end": end}
        connection.execute(sql.SQL(_ROWS).format(table), given)
        self._prove_some(connection, table)
        connection.execute(sql.SQL(_LEAVES).format(table), given)
        self._sign(connection, month)

    def _prove_some(self, connection: psycopg.Connection, table: sql.Identifier) -> None:
        statement = rows_statement(connection.execute(COLUMNS).fetchall(), "log_id = %s")
        chosen = sql.SQL("SELECT log_id FROM {} ORDER BY timestamp DESC OFFSET 100 LIMIT %s").format(table)
        for (log_id,) in connection.execute(chosen, (PROVEN,)).fetchall():
            ((_, text, *_),) = connection.execute(statement, (log_id,)).fetchall()
            changed = sql.SQL("UPDATE {} SET leaf_hash = %s WHERE log_id = %s").format(table)
            connection.execute(changed, (leaf_hash(json.loads(text)), log_id))

    def _sign(self, connection: psycopg.Connection, month: date) -> None:
        """A head of the whole month, and one before its newest records if it is the last month; only those that are counted are anchored."""
        ((origin,),) = connection.execute("SELECT origin FROM audit_origin").fetchall()
        tree, at = Frontier(), min(month_start(next_month(month)), self.until)
        counted = self.count - (min(UNCOUNTED, self.count // 10) if month == self.months[-1] else 0)
        leaves = [leaf for (leaf,) in connection.execute(_HASHES, (month,), binary=True)]
        for begin, end in pairwise(sorted({0, counted, self.count})):
            for leaf in leaves[begin:end]:
                tree.append(leaf)
            note = sign_note(Checkpoint(origin, month, end, tree.root(), at), self.key)
            connection.execute(
                "INSERT INTO audit_checkpoints VALUES (%s, %s, %s, %s)", (month, end, note, at)
            )
        self._anchor(connection, month, counted)

    def anchor_newest(self) -> None:
        """Once the rollups are made: what is in none of them is anchored all the same."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            self._anchor(connection, self.months[-1], self.count)

    def _anchor(self, connection: psycopg.Connection, month: date, size: int) -> None:
        anchor = (month, size, min(month_start(next_month(month)), self.until) + timedelta(seconds=30))
        connection.execute("INSERT INTO audit_anchors VALUES (%s, %s, 'none', 'none', %s)", anchor)


def months_until(today: date) -> list[date]:
    """Twelve, of which the last one is not over."""
    number = today.year * 12 + today.month - 1
    return [date(each // 12, each % 12 + 1, 1) for each in range(number - 11, number + 1)]
