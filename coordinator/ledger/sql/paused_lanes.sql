SELECT name FROM lane WHERE paused
