"""Settings of the common frame."""

from dataclasses import dataclass

from isoproto.settings.rules import AUTO, free, number, one_of


@dataclass(frozen=True, kw_only=True)
class Common:
    """The common frame: class statistics in features that every node computes for itself."""

    common__map: str = free(
        AUTO,
        auto="none",
        doc="Feature map of the common frame. `none`: the run has no common frame. `standard`: `scattering` for "
        "pictures, `words` for texts. Or a name in `MAPS`. `own`: each node's own function, `map` in its "
        "configuration. In a simulation also `FILE.py:callable`, the same function for all. `auto` is "
        "`none` for every strategy but `isoproto`.",
    )
    common__dim: int = number(0, 0, 16384, doc="Coordinates that are linear in the map's features; 0: as the map says.")
    common__features: int = number(
        -1, -1, 16384, doc="Random nonlinear features of these coordinates, beside them; -1: as the map says."
    )
    common__clip: float = number(
        4.0, 0, above=True, doc="Largest length of a sample in the frame, where a typical length is about 1."
    )
    common__rank: int = number(
        64, 0, 16384, doc="Leading directions of the within-class scatter that a client sends; 0: the whole scatter."
    )
    common__copies: int = number(
        4, 0, 64, doc="Changed copies of each own picture in a client's statistics. They share the picture's weight."
    )
    common__change: str = one_of(
        "warp", "warp", "warp_flip", "flip", "crop_flip", doc="How the copies are changed, as in `augment`."
    )
    common__holdout: float = number(
        0.1,
        0,
        0.5,
        doc="Part of a client's training samples by whose loss the classifier is chosen. Nothing is trained on them.",
    )
    common__shrink: float = number(
        0.0,
        0,
        1,
        doc="How far the covariance is pulled towards a multiple of the identity; 0: chosen by held-out loss, and 0.1 "
        "until somebody has held samples out.",
    )
    common__temperature: float = number(
        0.0,
        0,
        doc="Factor of the classifier's logits; 0: chosen by held-out loss, and 0.5 until somebody has held samples "
        "out.",
    )
    common__rounds: int = number(
        10, 0, doc="Most rounds in which gradients move the classifier; a held-out loss that rises ends them earlier."
    )
    common__step: float = number(1.0, 0, 100, above=True, doc="Length of a gradient step; 1 is safe.")
    common__pull: float = number(0.0, 0, 100, doc="Strength of the pull back to the closed form in a gradient step.")
    common__predict: str = one_of(
        "joint",
        "joint",
        "common",
        "head",
        doc="What a client predicts with. `joint`: a mixture of everybody's classifier, its own classifier in the same "
        "frame and its network. `common`: everybody's classifier. `head`: its network.",
    )
    common__distil: float = number(
        0.0,
        0,
        doc="Weight of the loss by which a client's network learns what everybody's classifier says of its "
        "own samples, unchanged ones; 0: it does not.",
    )

    common__secure: bool = free(
        False,
        doc="Add up clients' statistics by the secure sum: the server learns the sum over at least "
        "`min-contributors` clients, and no client's own. The whole scatter travels, whatever `common.rank` says. It "
        "needs `common.rounds = 0`.",
    )
    common__noise: float = number(
        0.0,
        0,
        doc="Deviation of the Gaussian noise in clients' statistics, over how far one sample can move them; 0: no "
        "noise. Each client adds all of it, or with `common.secure` its part. The report says which epsilon it gives.",
    )
    common__delta: float = number(
        1e-5,
        0,
        0.5,
        above=True,
        doc="Chance that epsilon does not hold; set it below one over the number of samples of all clients.",
    )

    @property
    def pooled(self) -> bool:
        """Whether the server learns only sums of clients' statistics, or noisy ones."""
        return self.framed and (self.common__secure or self.common__noise > 0)

    @property
    def framed(self) -> bool:
        """Whether the run has a common frame. A run that began before there was one has `auto` here."""
        return self.common__map not in ("none", AUTO)
