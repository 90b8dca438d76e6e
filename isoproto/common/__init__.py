"""The common frame: class statistics, classifiers and gradients in features that every node computes for itself."""
