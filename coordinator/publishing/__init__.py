"""Results go back to where they were asked for: `publisher` drives, `wordpress` speaks with a WordPress site."""
