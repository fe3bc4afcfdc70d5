"""The workspace: its files, their encodings, and threads for slow work on them."""
