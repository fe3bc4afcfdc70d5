"""Render a session as one HTML page: no script, no other files, every text of the session escaped."""
