SELECT name FROM lane ORDER BY name
