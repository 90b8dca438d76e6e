"""Pick some texts of each class, to read before training: what a contact sheet is for pictures."""

import numpy as np

from isoproto.data.base import TextDataset
from isoproto.data.contact_sheet import some_classes


def excerpts(dataset: TextDataset, *, classes: int = 20, samples: int = 3) -> list[tuple[str, str, str]]:
    r"""Return class, domain ("" if the set has none) and text of some samples, as a model gets them.

    Words that are not in the vocabulary are lost, and so is the text behind the last token that is kept. Ends of lines
    are written as ``\n``.

    Args:
        dataset: A set of texts.
        classes: Largest number of classes shown; if there are more, they are taken at equal distances.
        samples: Samples of each class. They are drawn at random with a fixed seed.

    Example:
        >>> import torch
        >>> tokens, part = torch.tensor([[2, 3, 0], [1, 3, 3]], dtype=torch.int32), torch.tensor([False, True])
        >>> known = ("", "? ", "very ", "nice ")
        >>> excerpts(TextDataset(tokens, torch.tensor([1, 0]), part, ("bad", "good"), words=known))
        [('bad', '', '? nice nice'), ('good', '', 'very nice')]
    """
    rng, labels, found = np.random.default_rng(0), dataset.y.numpy(), []
    for label in some_classes(len(dataset.classes), classes):
        for place in rng.permutation(np.flatnonzero(labels == label))[:samples]:
            domain = "" if dataset.domain is None else dataset.domains[int(dataset.domain[place])]
            text = "".join(dataset.words[token] for token in dataset.x[place].tolist())
            found.append((dataset.classes[label], domain, text.rstrip(" ").replace("\n", "\\n")))
    return found
