"""Training with very many classes: one loop with our losses, with the peer's, and with a filter of wrong labels."""
