"""Frozen networks whose outputs are the features: EfficientNet-Lite0 for images, MiniLM-L6 for
sentences. Only weights are fetched.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

# EfficientNet-Lite0: kernel, stride of the first, expansion, channels, repeats.
STAGES = [
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
]


class EfficientNetLite0:
    """Images (b, 3, h, h) with values in [0, 1] → (b, 1280): the averaged last layer, as
    MobileNetV2's has 1280.
    """

    def __init__(self, weights: Path, device: str = "cpu", dtype: torch.dtype = torch.float32):
        state = torch.load(weights, map_location="cpu", weights_only=True)
        self._convs: dict[str, tuple[Tensor, Tensor]] = {}

        def fold(conv: str, norm: str) -> None:
            """A convolution and the batch norm after it are one convolution with a bias."""
            scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + 1e-3).sqrt()
            weight = (state[f"{conv}.weight"] * scale[:, None, None, None]).to(
                device, dtype, memory_format=torch.channels_last
            )
            self._convs[conv] = (
                weight,
                (state[f"{norm}.bias"] - scale * state[f"{norm}.running_mean"]).to(device, dtype),
            )

        fold("_conv_stem", "_bn0")
        fold("_conv_head", "_bn1")
        for i in range(16):
            for conv, norm in (
                ("_expand_conv", "_bn0"),
                ("_depthwise_conv", "_bn1"),
                ("_project_conv", "_bn2"),
            ):
                if f"_blocks.{i}.{conv}.weight" in state:
                    fold(f"_blocks.{i}.{conv}", f"_blocks.{i}.{norm}")

    def _conv(self, name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight, bias = self._convs[name]
        k, h = weight.shape[-1], x.shape[-1]
        if k > 1:  # padded so that a stride halves the size, the odd pixel at the end
            short = max(0, (-(-h // stride) - 1) * stride + k - h)
            x = F.pad(x, (short // 2, short - short // 2) * 2)
        return F.conv2d(x, weight, bias, stride, groups=x.shape[1] if weight.shape[1] == 1 else 1)

    def __call__(self, images: Tensor) -> Tensor:
        x = (images * 255 - 127) / 128
        x = F.relu6(self._conv("_conv_stem", x.contiguous(memory_format=torch.channels_last), 2))
        i = 0
        for _, first, expansion, channels, repeats in STAGES:
            for j in range(repeats):
                y, stride = x, first if j == 0 else 1
                if expansion > 1:
                    y = F.relu6(self._conv(f"_blocks.{i}._expand_conv", y))
                y = F.relu6(self._conv(f"_blocks.{i}._depthwise_conv", y, stride))
                y = self._conv(f"_blocks.{i}._project_conv", y)
                x = x + y if stride == 1 and x.shape[1] == channels else y
                i += 1
        return F.relu6(self._conv("_conv_head", x)).mean((2, 3))


class MiniLM:
    """Sentences → (b, 384) of length 1: the mean over tokens of a six-layer transformer."""

    def __init__(self, folder: Path, device: str = "cpu"):
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        self._w = load_file(folder / "model.safetensors", device=device)
        self._tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokens.enable_truncation(128)
        self._tokens.enable_padding()

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._w[f"{name}.weight"], self._w[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(
            x, x.shape[-1:], self._w[f"{name}.weight"], self._w[f"{name}.bias"], 1e-12
        )

    def __call__(self, sentences: list[str]) -> Tensor:
        encoded = self._tokens.encode_batch(sentences)
        device = self._w["embeddings.LayerNorm.weight"].device
        ids = torch.tensor([e.ids for e in encoded], device=device)
        mask = torch.tensor([e.attention_mask for e in encoded], device=device).bool()
        w, (b, length) = self._w, ids.shape
        x = (
            w["embeddings.word_embeddings.weight"][ids]
            + w["embeddings.position_embeddings.weight"][:length]
        )
        x = self._norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])
        for i in range(6):
            at = f"encoder.layer.{i}"
            q, k, v = (
                self._linear(f"{at}.attention.self.{part}", x)
                .view(b, length, 12, 32)
                .transpose(1, 2)
                for part in ("query", "key", "value")
            )
            y = (
                F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
                .transpose(1, 2)
                .reshape(b, length, 384)
            )
            x = self._norm(
                f"{at}.attention.output.LayerNorm",
                x + self._linear(f"{at}.attention.output.dense", y),
            )
            y = self._linear(
                f"{at}.output.dense", F.gelu(self._linear(f"{at}.intermediate.dense", x))
            )
            x = self._norm(f"{at}.output.LayerNorm", x + y)
        mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return F.normalize(mean, dim=1)
