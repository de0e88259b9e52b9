DELETE FROM invitation WHERE worker = $1
