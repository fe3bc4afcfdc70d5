"""For each of the five systems a small client, written from its documented interface, against a real server."""
