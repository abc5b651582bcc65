"""Joint proofs that no perturbation violates all choices of a set, for the sets that decide a count."""
