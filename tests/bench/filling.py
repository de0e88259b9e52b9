"""A ledger with a past: settled jobs with their attempts, and waiting ones in a lane that nobody serves.

All of the past is of the last day, which is the worst for what is shown of a day and of an hour. The jobs differ in all
that people filter by, each time in what very many have and in what only few have.
"""

import asyncpg

WORKERS = (*(f"mac-{n}" for n in range(7)), "mac-seldom", "mac-gone")
"""`mac-seldom` had one attempt in 10,000, `mac-gone` the oldest 100 only."""

_OLD = """
SELECT
    n, tandem_now() - n * interval '86400 seconds' / $3::int AS at,
    CASE WHEN n % 20 = 0 THEN 2 ELSE 1 END AS epochs,
    n % 50 <> 0 AND n % 100 <> 1 AS has_result,
    CASE
        WHEN n % 50000 = 7 THEN 'audio'
        WHEN n % 20 < 14 THEN 'article'
        WHEN n % 20 < 19 THEN 'image'
        ELSE 'caption'
    END AS kind,
    CASE
        WHEN n % 50000 = 7 THEN 'musicgen'
        WHEN n % 20 < 10 THEN 'llama3.1:8b'
        WHEN n % 20 < 14 THEN 'qwen3:14b'
        WHEN n % 20 < 18 THEN 'flux-dev'
        WHEN n % 20 < 19 THEN 'sdxl'
        ELSE 'llava:7b'
    END AS model,
    CASE
        WHEN n > $3::int - 100 THEN 'mac-gone' WHEN n % 10000 = 9 THEN 'mac-seldom' ELSE 'mac-' || n / 3 % 7
    END AS worker
FROM generate_series($1::int, $2::int) AS n
"""

_SETTLED = f"""
INSERT INTO job (id, source, key, kind, model, lane, priority, state, content_sha256, spec, labels, max_attempts,
    timeout_s, review, run_after, created_at, epoch, attempt, offered_seq, spent_seq, finished_at, error, result,
    result_epoch, result_model, published_epoch)
SELECT md5('old-' || n)::uuid, CASE WHEN n % 10000 = 5 THEN 'shop' WHEN n % 10 = 0 THEN 'blog' ELSE 'cms' END,
    'post-' || n, kind, model, kind || '.' || replace(replace(model, '.', '-'), ':', '-'), 1,
    CASE
        WHEN n % 50 = 0 THEN 'failed' WHEN n % 100 = 1 THEN 'canceled' WHEN n % 1000 = 3 THEN 'awaiting_review'
        ELSE 'completed'
    END,
    sha256(n::text::bytea), jsonb_build_object('prompt', 'An article about the harbour, number ' || n),
    jsonb_build_object('post', n::text, 'site', CASE WHEN n % 2 = 0 THEN 'main' ELSE 'news' END)
    || CASE WHEN n % 50000 = 11 THEN '{{"campaign": "spring"}}' ELSE '{{}}' END::jsonb,
    5, 1800, false, at, at, epochs, CASE WHEN n % 50 = 0 THEN 2 ELSE 0 END, n, n, at + interval '90 seconds',
    CASE WHEN n % 50 = 0 THEN jsonb_build_object(
        'code', CASE WHEN n % 50000 = 0 THEN 'out_of_memory' ELSE 'timeout' END,
        'message', CASE WHEN n % 50000 = 0 THEN 'no memory for this model' ELSE 'too slow' END, 'class', 'transient'
    ) END,
    CASE WHEN has_result THEN jsonb_build_object('text', repeat('Words about the sea. ', 12)) END,
    CASE WHEN has_result THEN epochs END, CASE WHEN has_result THEN model END, epochs
FROM ({_OLD}) AS old
"""

_ATTEMPTS = f"""
INSERT INTO attempt (job_id, epoch, number, worker, instance, delivery, claimed_at, deadline_at, outcome, ended_at,
    result_sha256, stage, progress, heartbeats, heartbeat_at, elapsed_s, model, settings, stages, bytes)
SELECT md5('old-' || n)::uuid, epoch, epoch, worker, 'e7a5d1c2-0000-4000-8000-000000000001',
    '$JS.ACK.WORK.' || kind || '--' || replace(replace(model, '.', '-'), ':', '-') || '.1.' || n
    || '.1.1760000000000000000.0',
    at, at + interval '30 minutes',
    CASE
        WHEN n % 100 = 1 THEN 'canceled' WHEN epoch < epochs THEN 'lease_expired' WHEN n % 50 = 0 THEN 'failed'
        ELSE 'completed'
    END,
    at + interval '20 seconds' * (1 + n % 7), sha256(n::text::bytea), 'finalizing', 1, 3, at + interval '60 seconds',
    80.0, model, '{{"temperature": 0.7, "seed": 42}}',
    '[{{"stage": "loading_model", "at_s": 0.0}}, {{"stage": "generating_text", "at_s": 6.1}}]', 0
FROM ({_OLD}) AS old
CROSS JOIN LATERAL generate_series(1, epochs) AS epoch
"""

_PENDING = """
INSERT INTO job (id, source, key, kind, model, lane, priority, state, content_sha256, spec, labels, max_attempts,
    timeout_s, review, run_after, created_at)
SELECT md5('waiting-' || n)::uuid, 'cms', 'waiting-' || n, 'article', 'qwen3:32b', 'article.qwen3-32b', 1, 'pending',
    sha256(n::text::bytea), jsonb_build_object('prompt', 'An article that waits, number ' || n), '{}', 5, 1800, false,
    tandem_now() - n * interval '1 second', tandem_now() - n * interval '1 second'
FROM generate_series(1, $1::int) AS n
"""

_REFUSED = """
WITH results AS (
    INSERT INTO rejected_result (job_id, epoch, worker, verdict, reason, current_epoch, at, report)
    SELECT md5('old-' || n * 20)::uuid, 1, 'mac-' || n % 7, 'stale', 'epoch 1, current 2', 2,
        tandem_now() - n * interval '1 second', '{"outcome": "completed", "result": {"text": "Late."}}'
    FROM generate_series(1, $1::int / 20) AS n
)
INSERT INTO rejected_submission (source, at, code, reason, faults, body, size)
SELECT CASE WHEN n % 1000 = 0 THEN 'shop' ELSE 'cms' END, tandem_now() - n * interval '1 second', 'invalid', 'no kind',
    '[{"field": "kind", "message": "missing"}]', '{"key": "post-1"}', 17
FROM generate_series(1, $1::int / 20) AS n
"""

_KNOWN = """
WITH lanes AS (
    INSERT INTO lane (name) SELECT DISTINCT lane FROM job ON CONFLICT DO NOTHING
)
INSERT INTO worker (name, first_seen_at, seen_at, presence)
SELECT name, tandem_now() - interval '1 day', tandem_now(), $2::jsonb FROM unnest($1::text[]) AS name
ON CONFLICT DO NOTHING
"""

_PRESENCE = """{"instance": "e7a5d1c2-0000-4000-8000-000000000001", "state": "ready", "slots": 1, "facts": {},
    "capabilities": []}"""

_SLICE = 100_000


async def fill(dsn: str, *, settled: int, pending: int) -> None:
    """Fill set by set, the busy indexes last, and leave the tables as vacuum would."""
    connection = await asyncpg.connect(dsn)
    try:
        indexes = await connection.fetch(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename IN ('job', 'attempt') AND indexname !~ '_pkey$'"
        )
        await connection.execute("SET synchronous_commit = off; SET maintenance_work_mem = '256MB'")
        for index in indexes:
            await connection.execute(f"DROP INDEX {index['indexname']}")
        for first in range(1, settled + 1, _SLICE):
            last = min(first + _SLICE - 1, settled)
            await connection.execute(_SETTLED, first, last, settled, timeout=120)
            await connection.execute(_ATTEMPTS, first, last, settled, timeout=120)
        await connection.execute(_PENDING, pending, timeout=120)
        await connection.execute(_REFUSED, settled, timeout=120)
        await connection.execute(_KNOWN, WORKERS, _PRESENCE, timeout=120)
        for index in indexes:
            await connection.execute(index["indexdef"], timeout=120)
        for table in ("job", "attempt", "rejected_result", "rejected_submission", "worker", "lane"):
            await connection.execute(f"VACUUM (ANALYZE, FREEZE) {table}", timeout=300)
        await connection.execute("CHECKPOINT", timeout=120)
    finally:
        await connection.close()
