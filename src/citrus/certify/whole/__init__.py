"""One perturbation for many images at once: a bound of how many it violates that no linear program gives."""
