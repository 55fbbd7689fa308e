"""Who says what hangs: where each rank is, for whom it waits, and the sentences of a deadline that has passed."""
