"""Claims on this node: plan, journal, effects in order, and putting right what a crash left behind."""
