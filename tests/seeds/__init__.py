"""Clients written from the documents alone, against a real server process."""
