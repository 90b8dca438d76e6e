"""The mathematics of class prototypes: sums, means, relations and frames. Plain torch, no Flower."""
