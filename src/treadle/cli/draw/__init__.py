"""Draw what a terminal shows: pure functions from data to lines with escape codes.

Only this package imports rich, and only when it draws Markdown. The lines are safe: control characters are escaped.
"""
