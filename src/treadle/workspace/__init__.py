"""The workspace: how tools and history open files beneath it."""
