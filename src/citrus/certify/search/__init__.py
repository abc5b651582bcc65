"""The most images of a group that one perturbation can violate, by exact search over (image, wrong label) choices."""
