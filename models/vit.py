"""Vision transformers (Dosovitskiy et al., arXiv:2010.11929)."""

from collections.abc import Callable

from torch import nn

from models.base import ModelSpec


def vit(spec: ModelSpec) -> nn.Module:
    """Return a small vision transformer: 4 layers of 4 heads, 128 wide, on patches of 8x8 pixels."""
    return _torchvision(spec, 8, layers=4, heads=4, width=128)


def vit_b(patch: int) -> Callable[[ModelSpec], nn.Module]:
    """Return a builder of torchvision's ViT-B: 12 layers of 12 heads, 768 wide, on square patches of side ``patch``.

    Pictures are padded with zeros on the right and below, to the next square of whole patches. A zero adds nothing to
    the embedding of a patch. A 28x28 picture becomes four patches of side 16, as a 32x32 picture does, or one of side
    32.
    """
    return lambda spec: _torchvision(spec, patch, layers=12, heads=12, width=768)


def _torchvision(spec: ModelSpec, patch: int, *, layers: int, heads: int, width: int) -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    side = -(-max(spec.height, spec.width) // patch) * patch
    net = VisionTransformer(side, patch, layers, heads, width, mlp_dim=4 * width)
    net.heads = nn.Identity()
    net.conv_proj = nn.Conv2d(spec.channels, width, patch, patch)
    nn.init.trunc_normal_(net.conv_proj.weight, std=(spec.channels * patch**2) ** -0.5)
    nn.init.zeros_(net.conv_proj.bias)
    return nn.Sequential(nn.ZeroPad2d((0, side - spec.width, 0, side - spec.height)), net)
