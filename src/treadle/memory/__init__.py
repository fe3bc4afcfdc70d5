"""Memory: what is remembered from one session to the next. base.py is the port."""
