"""Augmented copies of 28x28 images: small random rotation, scale, shift and horizontal flip.

    X = augment(images, copies=16, seed=0)    # images: (n, 784) uint8 on any device -> (16 n, 784) float16 in [0, 1]

The first n rows are the originals; labels repeat in the same order (`y.repeat(copies)`).
"""

import torch
from torch.nn.functional import affine_grid, grid_sample


def augment(images, copies, seed, chunk=10_000):
    device = images.device
    g = torch.Generator(device=device).manual_seed(seed)
    uniform = lambda *shape: torch.rand(*shape, device=device, generator=g) - 0.5  # noqa: E731
    n, pixels = len(images), images.view(-1, 1, 28, 28).float() / 255
    out = [images.half() / 255]
    for _ in range(copies - 1):
        angle, scale = uniform(n) * 0.2, 1 + uniform(n) * 0.16
        flip = 1 - 2 * (uniform(n) < 0).float()
        theta = torch.stack(
            [
                torch.stack([angle.cos() * scale * flip, -angle.sin() * scale], 1),
                torch.stack([angle.sin() * scale * flip, angle.cos() * scale], 1),
            ],
            1,
        )
        theta = torch.cat([theta, uniform(n, 2, 1) * 0.2], 2)
        moved = [
            grid_sample(
                pixels[i : i + chunk],
                affine_grid(theta[i : i + chunk], pixels[i : i + chunk].shape, align_corners=False),
                align_corners=False,
            )
            for i in range(0, n, chunk)
        ]
        out.append(torch.cat(moved).view(n, 784).half())
    return torch.cat(out)
