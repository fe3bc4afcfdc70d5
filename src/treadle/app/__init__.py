"""The application: settings, the composition of a runtime from them, and diagnosis."""
