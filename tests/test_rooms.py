"""Smaller rooms: data, distributed, centers, planning, tuning, model."""

import numpy as np
import pytest
import torch

from kernelmill import InputError, KernelModel, Plan, centers, kernels
from kernelmill.callbacks.progress import plan_line
from kernelmill.data import ArraySource
from kernelmill.distributed.team import Alone, count, gather, shard
from kernelmill.distributed.threads import run_threads
from kernelmill.ops import KernelProduct
from kernelmill.planning.memory import free_bytes, parse_bytes
from kernelmill.solvers import EigenPro4
from kernelmill.solvers.direct import direct_is_instant
from kernelmill.tuning import loo, search
from kernelmill.tuning.sample import Sample

X = torch.randn(300, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


# ---- data


def test_batches_cover_every_row_once_and_resume_anywhere():
    source = ArraySource(X, X[:, :2], mean=torch.zeros(2, dtype=torch.float64), seed=5)
    rows = torch.cat([b.rows for b in source.batches(64, epoch=1)])
    assert sorted(rows.tolist()) == list(range(300))
    again = torch.cat([b.rows for b in source.batches(64, epoch=1, position=128)])
    assert torch.equal(again, rows[128:])
    assert not torch.equal(torch.cat([b.rows for b in source.batches(64, epoch=2)]), rows)


def test_codes_become_centred_one_hot_rows():
    mean = torch.tensor([0.5, 0.25, 0.25])
    batch = ArraySource(X, torch.arange(300) % 3, mean=mean).take(torch.tensor([0, 4]))
    torch.testing.assert_close(batch.Y, torch.tensor([[0.5, -0.25, -0.25], [-0.5, 0.75, -0.25]]))
    assert (batch.w == 1).all()


# ---- distributed


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_shards_gather_to_the_whole(ranks):
    whole = torch.arange(23.0)[:, None] * torch.ones(2)

    def work(comm):
        mine = whole[shard(comm)]
        for start, stop in ((0, 23), (4, 17), (7, 8), (6, 6)):
            part = gather(comm, mine[count(comm, start) : count(comm, stop)], start, stop)
            torch.testing.assert_close(part, whole[start:stop])
        return comm.all_sum(torch.tensor([float(comm.rank)])).item()

    assert run_threads(ranks, work) == [sum(range(ranks))] * ranks
    assert work(Alone()) == 0.0


def test_an_error_on_one_rank_ends_all():
    def work(comm):
        if comm.rank == 1:
            raise ValueError("lost")
        comm.all_sum(torch.zeros(1))

    with pytest.raises(ValueError, match="lost"):
        run_threads(3, work)


# ---- centers

K = KernelProduct(
    kernels.Laplacian(1.0),
    torch.zeros(4, dtype=torch.float64),
    "float64",
    torch.device("cpu"),
    1 << 20,
)


def rows_of(X):
    return ArraySource(X, torch.zeros(len(X), 1), mean=torch.zeros(1))


@pytest.mark.parametrize("how", centers.WAYS)
@pytest.mark.parametrize("p", [1, 2, 37, 300, 500])
def test_centers_are_distinct_rows(how, p):
    rows = centers.choose(
        how, K, rows_of(X), torch.arange(300) % 7, p, torch.Generator().manual_seed(0)
    )
    assert len(rows) == len(set(rows.tolist())) == min(p, 300)


def test_balanced_centers_are_balanced():
    labels = torch.cat([torch.zeros(270), torch.ones(25), torch.full((5,), 2.0)]).long()
    rows = centers.choose("balanced", K, rows_of(X), labels, 60, torch.Generator().manual_seed(0))
    assert torch.bincount(labels[rows]).tolist() == [30, 25, 5]


def spread(rows):
    """How far the worst row is from its nearest center."""
    return torch.cdist(X, X[rows]).min(1).values.max().item()


def test_farthest_points_cover_and_pivots_explain():
    g = torch.Generator().manual_seed(0)
    picks = {how: centers.choose(how, K, rows_of(X), None, 40, g) for how in centers.WAYS}
    assert spread(picks["farthest"]) < 0.8 * spread(picks["uniform"])
    assert spread(picks["kmeans++"]) < spread(picks["uniform"])
    wide = KernelProduct(
        kernels.Gaussian(2.0),
        torch.zeros(4, dtype=torch.float64),
        "float64",
        torch.device("cpu"),
        1 << 20,
    )

    def unexplained(rows):
        K_XZ, K_ZZ = wide.kernel(X, X[rows]), wide.kernel(X[rows])
        return (
            300 - (K_XZ * torch.linalg.solve(K_ZZ + 1e-10 * torch.eye(40), K_XZ.T).T).sum()
        ).item()

    pivots = [
        centers.choose("rpcholesky", wide, rows_of(X), None, 40, torch.Generator().manual_seed(i))
        for i in range(5)
    ]
    plain = [
        centers.choose("uniform", wide, rows_of(X), None, 40, torch.Generator().manual_seed(i))
        for i in range(5)
    ]
    assert np.mean([unexplained(r) for r in pivots]) < 0.9 * np.mean(
        [unexplained(r) for r in plain]
    )


def test_duplicates_do_not_break_the_greedy_ways():
    twice = torch.cat([X[:20]] * 10)
    for how in centers.WAYS:
        rows = centers.choose(how, K, rows_of(twice), None, 50, torch.Generator().manual_seed(0))
        assert len(set(rows.tolist())) == 50


# ---- planning


def test_budgets_are_read_as_people_write_them():
    assert (
        parse_bytes("8GB") == 8 * 10**9
        and parse_bytes("500 MiB") == 500 * 2**20
        and parse_bytes(12345) == 12345
    )
    assert 0 < parse_bytes(None) < free_bytes()
    for bad in ("many", "GB", 0, -1, [1]):
        with pytest.raises(InputError, match="memory_budget="):
            parse_bytes(bad)


def test_plans_are_plain_data():
    plan = Plan("eigenpro4", 10, 2, 1, 5, m=3)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert "5 centers" in plan_line(plan)


def test_defaults_grow_with_the_data():
    assert EigenPro4().default_centers(500) == 500 and EigenPro4().default_centers(10**7) == 20_000
    assert direct_is_instant(3_000, 3_000, 8 << 30) and not direct_is_instant(10**6, 500, 64 << 30)


# ---- tuning


def test_leave_one_out_by_leaving_one_out():
    Y, w = torch.sin(X[:40, :2]), torch.rand(40, dtype=torch.float64) + 0.2
    kernel = kernels.Gaussian(2.0)
    fast = loo.loo_residuals(kernel(X[:40]), Y, 0.1 / w)
    for i in (0, 7, 39):
        rest = [j for j in range(40) if j != i]
        alpha = torch.linalg.solve(kernel(X[rest]) + torch.diag(0.1 / w[rest]), Y[rest])
        torch.testing.assert_close(
            fast[i], Y[i] - (kernel(X[i : i + 1], X[rest]) @ alpha)[0], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("ratio", [pytest.param(1.0, marks=pytest.mark.slow), 0.1])
def test_tuning_finds_a_bandwidth_near_the_best(ratio):
    g = torch.Generator().manual_seed(1)
    A = torch.randn(2000, 3, dtype=torch.float64, generator=g)
    Y = torch.sin(2 * A[:, :1]) + 0.05 * torch.randn(2000, 1, dtype=torch.float64, generator=g)
    sample = Sample(A[:1200], Y[:1200], torch.ones(1200, dtype=torch.float64), ratio)
    choice = search.tune(kernels.Gaussian("auto"), None, sample)
    fixed = [
        search.tune(kernels.Gaussian(b), None, sample).error for b in (0.03, 0.3, 1.0, 3.0, 30.0)
    ]
    assert choice.error < 1.05 * min(fixed) and choice.error < max(fixed) / 10
    assert choice.error < 0.01


def test_a_set_bandwidth_and_ridge_are_kept():
    sample = Sample(X, X[:, :1], torch.ones(300, dtype=torch.float64), 1.0)
    choice = search.tune(kernels.Gaussian(1.25), 0.5, sample)
    assert choice.kernel.bandwidth == 1.25 and choice.ridge == 0.5


# ---- model


def test_a_model_is_a_torch_module():
    model = KernelModel(
        kernels.Laplacian(2.0),
        X[:50],
        torch.randn(50, 2, dtype=torch.float64),
        torch.tensor([1.0, -1.0]).double(),
    )
    expected = kernels.Laplacian(2.0)(X, X[:50]) @ model.alpha + model.intercept
    torch.testing.assert_close(model(X), expected)
    assert set(model.state_dict()) == {"Z", "alpha", "intercept"}
    torch.testing.assert_close(model.float()(X.float()).double(), expected, rtol=1e-4, atol=1e-4)
    assert "centers=50" in repr(model)
