"""Hyper-prototypes and what they are learned from: feature gradients and gradient matching. Plain torch, no Flower."""
