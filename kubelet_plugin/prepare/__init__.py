"""Claims on this node: plan, journal, steps, and putting right what a crash left behind."""
