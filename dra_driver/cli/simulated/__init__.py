"""Commands that work on a simulated cluster of their own: the demo, one example of it, and the tour."""
