"""The edited texts, the new objects and the way back."""
