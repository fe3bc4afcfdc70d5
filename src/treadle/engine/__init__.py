"""The engine: pure decisions (state, steps, context, compaction) and the loop that acts on them."""
