SELECT state, count(*) AS jobs FROM job GROUP BY state
