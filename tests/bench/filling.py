"""A ledger with a past: settled jobs with their attempts, and waiting ones in a lane that nobody serves."""

import asyncpg

_SETTLED = """
INSERT INTO job (id, source, key, kind, model, lane, priority, state, content_sha256, spec, labels, max_attempts,
    timeout_s, review, run_after, created_at, epoch, attempt, offered_seq, spent_seq, finished_at, error, result,
    result_epoch, result_model, published_epoch)
SELECT md5('old-' || n)::uuid, 'cms', 'post-' || n, 'article', 'llama3.1:8b', 'article.llama3-1-8b', 1,
    CASE WHEN n % 50 = 0 THEN 'failed' WHEN n % 100 = 1 THEN 'canceled' ELSE 'completed' END,
    sha256(n::text::bytea), jsonb_build_object('prompt', 'An article about the harbour, number ' || n),
    jsonb_build_object('post', n::text), 5, 1800, false, at, at, CASE WHEN n % 20 = 0 THEN 2 ELSE 1 END,
    CASE WHEN n % 50 = 0 THEN 2 ELSE 0 END, n, n, at + interval '90 seconds',
    CASE WHEN n % 50 = 0 THEN jsonb_build_object('code', 'timeout', 'message', 'too slow', 'class', 'transient') END,
    CASE WHEN n % 50 <> 0 AND n % 100 <> 1 THEN jsonb_build_object('text', repeat('Words about the sea. ', 12)) END,
    CASE WHEN n % 50 <> 0 AND n % 100 <> 1 THEN CASE WHEN n % 20 = 0 THEN 2 ELSE 1 END END,
    CASE WHEN n % 50 <> 0 AND n % 100 <> 1 THEN 'llama3.1:8b' END,
    CASE WHEN n % 20 = 0 THEN 2 ELSE 1 END
FROM (
    SELECT n, now() - interval '8 days' - n * interval '5 seconds' AS at FROM generate_series($1::int, $2::int) AS n
) AS old
"""

_ATTEMPTS = """
INSERT INTO attempt (job_id, epoch, number, worker, instance, delivery, claimed_at, deadline_at, outcome, ended_at,
    result_sha256, stage, progress, heartbeats, heartbeat_at, elapsed_s, model, settings, stages, bytes)
SELECT md5('old-' || n)::uuid, epoch, epoch, 'mac-' || n % 7, 'e7a5d1c2-0000-4000-8000-000000000001',
    '$JS.ACK.WORK.article--llama3-1-8b.1.' || n || '.1.1760000000000000000.0', at, at + interval '30 minutes',
    CASE
        WHEN n % 100 = 1 THEN 'canceled'
        WHEN epoch < least(2, 1 + (n % 20 = 0)::int) THEN 'lease_expired'
        WHEN n % 50 = 0 THEN 'failed'
        ELSE 'completed'
    END,
    at + interval '80 seconds', sha256(n::text::bytea), 'finalizing', 1, 3, at + interval '60 seconds', 80.0,
    'llama3.1:8b', '{"temperature": 0.7, "seed": 42}',
    '[{"stage": "loading_model", "at_s": 0.0}, {"stage": "generating_text", "at_s": 6.1}]', 0
FROM (
    SELECT n, epoch, now() - interval '8 days' - n * interval '5 seconds' AS at
    FROM generate_series($1::int, $2::int) AS n
    CROSS JOIN LATERAL generate_series(1, CASE WHEN n % 20 = 0 THEN 2 ELSE 1 END) AS epoch
) AS old
"""

_PENDING = """
INSERT INTO job (id, source, key, kind, model, lane, priority, state, content_sha256, spec, labels, max_attempts,
    timeout_s, review, run_after, created_at)
SELECT md5('waiting-' || n)::uuid, 'cms', 'waiting-' || n, 'article', 'qwen3:32b', 'article.qwen3-32b', 1, 'pending',
    sha256(n::text::bytea), jsonb_build_object('prompt', 'An article that waits, number ' || n), '{}', 5, 1800, false,
    now() - n * interval '1 second', now() - n * interval '1 second'
FROM generate_series(1, $1::int) AS n
"""

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
            await connection.execute(_SETTLED, first, last, timeout=120)
            await connection.execute(_ATTEMPTS, first, last, timeout=120)
        await connection.execute(_PENDING, pending, timeout=120)
        await connection.execute(
            "INSERT INTO lane (name) VALUES ('article.llama3-1-8b'), ('article.qwen3-32b') ON CONFLICT DO NOTHING"
        )
        for index in indexes:
            await connection.execute(index["indexdef"], timeout=120)
        for table in ("job", "attempt"):
            await connection.execute(f"VACUUM (ANALYZE, FREEZE) {table}", timeout=300)
        await connection.execute("CHECKPOINT", timeout=120)
    finally:
        await connection.close()
