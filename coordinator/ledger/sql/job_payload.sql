-- What granted jobs are made from; their rows are locked.
SELECT id, kind, model, spec, labels, priority FROM job WHERE id = ANY ($1::uuid[])
