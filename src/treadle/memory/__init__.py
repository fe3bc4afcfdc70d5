"""Memory: what agents remember from one session to the next."""
