"""Compiles every Triton kernel for an NVIDIA sm_90 GPU, without having one: run by test_fused.py
in a process of its own.

The interpreter forgives what the compiler does not, so this is what a machine without a GPU can
say about the compiled kernels.
"""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernelmill.kernels import (
    ArcCosine,
    Gaussian,
    GeneralisedExponential,
    Laplacian,
    Linear,
    Matern,
    Polynomial,
    RationalQuadratic,
    ReluNTK,
)
from kernelmill.ops import fused64, triton_kernels
from kernelmill.ops.fused import PROFILES, Form, _padded

EVERY = [
    Laplacian(),
    Gaussian(),
    Matern(),
    Matern(nu=2.5),
    GeneralisedExponential(),
    RationalQuadratic(),
    Linear(),
    Polynomial(),
    ReluNTK(),
    ArcCosine(order=0),
    ArcCosine(),
    ArcCosine(order=2),
]
TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    "float8": "fp8e4nv",
    "float16": "fp16",
    "bfloat16": "bf16",
    "tf32": "fp32",
    "float32": "fp16",
}


def build(kernel, types: dict[str, str], constants: dict, **options) -> None:
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    names = list(signature)
    assert names == kernel.arg_names, (names, kernel.arg_names)
    source = ASTSource(
        kernel,
        signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )
    compiled = triton.compile(source, target=TARGET, options=options)
    assert compiled.metadata.shared < 232_448, "more shared memory than an H100 has"


def block_product(kernel, precision: str, D: int, c: int, store: str, product: bool) -> None:
    form = Form(kernel, precision, 1.0)
    C = max(16, triton.next_power_of_2(c))
    shape = form.shape(D, C)
    profile, _, order = form.profile
    normalised = store != "float32" and not kernel.translation_invariant
    half, single = TYPES[precision], "*fp32"
    part = f"tensordesc<fp16[{shape.BM}, {shape.BN // shape.parts}]>"
    types = {
        "a": f"tensordesc<{half}[{shape.BM}, {shape.BK}]>",
        "b": f"tensordesc<{half}[{shape.BN}, {shape.BK}]>",
        "sq_a_ptr": single,
        "sq_b_ptr": single,
        "norm_a_ptr": single,
        "norm_b_ptr": single,
        "w_ptr": "*fp16",
        "back_ptr": single,
        "k_high": part if store in ("high", "split") else single,
        "k_low": part if store in ("high", "split") else single,
        "stride": "i64",
        "out_ptr": single,
        **dict.fromkeys(["M", "N", "D", "c", "row_tiles", "per_program"], "i32"),
        "unit": "fp32",
        "number": "fp32",
    }
    constants = dict(
        PROFILE=profile,
        ORDER=order,
        NORMALISE=normalised,
        PRODUCT=product,
        STORE=store,
        BM=shape.BM,
        BN=shape.BN,
        BK=shape.BK,
        PARTS=shape.parts,
        C=C,
        TWO=form.two,
        ADDED=form.added(shape.BK, torch.device("cpu")),
        RESIDENT=D <= shape.BK,
    )
    build(
        triton_kernels.block_product,
        types,
        constants,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )


def in_float64() -> None:
    sizes = dict.fromkeys(["M", "N", "D", "c", "row_tiles", "per_program"], "i32")
    for kernel in EVERY:
        if fused64.form_of(kernel) is None:
            continue
        profile, _, order = PROFILES[type(kernel)](kernel)
        names = ["a_ptr", "b_ptr", "sq_a_ptr", "sq_b_ptr", "w_ptr", "numbers_ptr", "out_ptr"]
        constants = dict(PROFILE=profile, ORDER=order, BM=64, BN=64, BK=16, C=16)
        types = {**dict.fromkeys(names, "*fp64"), **sizes}
        build(triton_kernels.block_product64, types, constants, num_warps=4)
    del sizes["D"]
    types = {"k_ptr": "*fp32", "stride": "i64", "w_ptr": "*fp64", "out_ptr": "*fp64", **sizes}
    for transposed in (False, True):
        for C in (1, 16):
            constants = dict(TRANSPOSED=transposed, BM=64, BN=64, C=C)
            build(triton_kernels.held_product, types, constants, num_warps=4)


def main() -> None:
    in_float64()
    for kernel in EVERY:
        block_product(kernel, "float16", 1280, 10, "split", True)
    for precision in TYPES:
        block_product(Laplacian(), precision, 1280, 10, "", True)
        short = Form(Laplacian(), precision, 1.0).width(16)
        block_product(Laplacian(), precision, short, 10, "", True)
        block_product(Linear(), precision, 1280, 10, "float32", False)
    block_product(Laplacian(), "float8", 1280, 10, "high", True)
    block_product(Laplacian(), "float16", 96, 10, "split", True)
    block_product(Laplacian(), "float16", 96, 64, "split", True)
    block_product(Laplacian(), "float16", 1280, 10, "split", False)
    for two in (False, True):
        types = {"a": "tensordesc<fp16[64, 32]>", "out_ptr": "*fp32", "M": "i32", "D": "i32"}
        build(triton_kernels.norms, types, dict(BM=64, BK=32, TWO=two, ADDED=0))
        types = {
            "w_ptr": "*fp32",
            "largest_ptr": "*fp32",
            "out_ptr": "*fp16",
            "back_ptr": "*fp32",
            "N": "i32",
            "c": "i32",
            "C": "i32",
        }
        build(
            triton_kernels.split_columns,
            types,
            dict(STACKED=two, BLOCK=4096 // _padded(10), WIDTH=_padded(10)),
        )
    print("compiled")


if __name__ == "__main__":
    sys.exit(main())
