"""The common frame written out in loops over samples, clients, classes and versions, to compare the fast code with."""

from __future__ import annotations

import math

import torch


def sample_means(phi):
    """Return the mean over the versions of each sample, as lists."""
    n, versions, width = phi.shape
    return [[sum(float(phi[i, v, j]) for v in range(versions)) / versions for j in range(width)] for i in range(n)]


def statistics(phi, labels):
    """Return count and sum of each class, and the scatter of all versions about the mean of their class."""
    n, versions, width = phi.shape
    means = sample_means(phi)
    counts, sums = {}, {}
    for i in range(n):
        c = int(labels[i])
        counts[c] = counts.get(c, 0) + 1
        sums[c] = [a + b for a, b in zip(sums.get(c, [0.0] * width), means[i], strict=True)]
    scatter = torch.zeros(width, width, dtype=torch.float64)
    for i in range(n):
        c = int(labels[i])
        for v in range(versions):
            away = [float(phi[i, v, j]) - sums[c][j] / counts[c] for j in range(width)]
            for j in range(width):
                for k in range(width):
                    scatter[j, k] += away[j] * away[k] / versions
    return counts, sums, scatter


def pooled(parts, num_classes, width):
    """Return counts, sums and scatter of several clients from their own, class by class, by the formula of the sum."""
    counts, sums = [0.0] * num_classes, [[0.0] * width for _ in range(num_classes)]
    each = [statistics(phi, labels) for phi, labels in parts]
    for own_counts, own_sums, _ in each:
        for c, number in own_counts.items():
            counts[c] += number
            sums[c] = [a + b for a, b in zip(sums[c], own_sums[c], strict=True)]
    scatter = torch.zeros(width, width, dtype=torch.float64)
    for own_counts, own_sums, own_scatter in each:
        scatter += own_scatter
        for c, number in own_counts.items():
            away = [own_sums[c][j] / number - sums[c][j] / counts[c] for j in range(width)]
            away = torch.tensor(away, dtype=torch.float64)
            scatter += number * torch.outer(away, away)
    return torch.tensor(counts, dtype=torch.float64), torch.tensor(sums, dtype=torch.float64), scatter


def solved(counts, sums, scatter, shrinkage):
    """Return the rows by an explicit inverse; at least one class must vary."""
    width = len(scatter)
    present = [c for c in range(len(counts)) if counts[c] > 0]
    freedom = max(1.0, float(sum(counts)) - len(present))
    trace = sum(float(scatter[j, j]) for j in range(width))
    sigma = torch.zeros(width, width, dtype=torch.float64)
    for j in range(width):
        for k in range(width):
            sigma[j, k] = (1 - shrinkage) * scatter[j, k] / freedom
        sigma[j, j] += shrinkage * trace / (width * freedom)
    inverse = torch.linalg.inv(sigma)
    rows = torch.zeros(len(counts), width + 1, dtype=torch.float64)
    for c in present:
        mean = sums[c] / counts[c]
        rows[c, :-1] = inverse @ mean
        rows[c, -1] = -0.5 * mean @ inverse @ mean
    return rows


def probabilities(rows, present, x, temperature, prior):
    """Return the class probabilities of one sample. Classes that nobody holds have none, unless nobody holds any."""
    logits = {}
    for c in range(len(rows)):
        if present[c] or not any(present):
            logits[c] = temperature * (float(rows[c, :-1] @ x) + float(rows[c, -1])) + float(prior[c])
    top = max(logits.values())
    everything = sum(math.exp(value - top) for value in logits.values())
    return [math.exp(logits[c] - top) / everything if c in logits else 0.0 for c in range(len(rows))]


def gradients(phi, labels, rows, present, temperature, prior):
    """Return each class's gradient, summed sample by sample and version by version."""
    n, versions, width = phi.shape
    found = torch.zeros(len(rows), width + 1, dtype=torch.float64)
    for i in range(n):
        for v in range(versions):
            x = phi[i, v].double()
            p = probabilities(rows, present, x, temperature, prior)
            for c in range(len(rows)):
                error = p[c] - (c == int(labels[i]))
                found[c, :-1] += error * x / versions
                found[c, -1] += error / versions
    return found


def loss(rows, present, phi, labels, temperature, prior):
    """Return the summed squared error of the probabilities of the first versions of samples."""
    total = 0.0
    for i in range(len(labels)):
        p = probabilities(rows, present, phi[i, 0].double(), temperature, prior)
        total += sum((float(p[c]) - (c == int(labels[i]))) ** 2 for c in range(len(rows)))
    return total
