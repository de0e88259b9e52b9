SELECT count(*) AS jobs, count(*) FILTER (WHERE state IN ('pending', 'processing')) AS live FROM job
