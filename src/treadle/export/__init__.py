"""Export: sessions as transcripts and as tracing spans."""
