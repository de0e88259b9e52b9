-- Jobs that start anew: what they had is no part of a result any more, and is swept.
UPDATE artifact SET linked = false WHERE job_id = ANY ($1::uuid[]) AND linked
