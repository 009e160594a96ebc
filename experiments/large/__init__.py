"""Training with very many classes, lived: the same loop with our losses, the peer's, and a filter of wrong labels."""
