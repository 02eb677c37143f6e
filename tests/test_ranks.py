"""Several processes, on Gloo: the same weights, whatever is lost on the way."""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import kernelmill
from job import data, estimators, weights_of_solvers
from kernelmill import InputError, KernelRegressor, load
from kernelmill.data import ArraySource
from kernelmill.distributed.team import Alone, by_tiles, largest
from kernelmill.distributed.threads import run_threads
from kernelmill.planning.machine import Network
from kernelmill.planning.plan import Plan
from kernelmill.solvers import EigenPro4

JOB = str(Path(__file__).with_name("job.py"))
SECONDS = 30  # within which a rank that is lost must have ended the others


def environment(**more: str) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    }
    return {**clean, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **more}


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def started(work: str, folder: Path, ranks: int) -> list[subprocess.Popen]:
    """The processes of a job, as a scheduler would start them."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, JOB, work, str(folder)],
            env=environment(
                RANK=str(rank),
                WORLD_SIZE=str(ranks),
                LOCAL_RANK=str(rank),
                LOCAL_WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def finished(job: list[subprocess.Popen], timeout: float = 120) -> list[tuple[int, str]]:
    """Exit code and stderr of each."""
    try:
        said = [process.communicate(timeout=timeout)[1] for process in job]
    finally:
        for process in job:
            process.kill()
    return [(process.returncode, text) for process, text in zip(job, said, strict=True)]


def run(work: str, folder: Path, ranks: int) -> None:
    said = finished(started(work, folder, ranks))
    assert not any(code for code, _ in said), "\n".join(text[-3000:] for _, text in said)


def relative(found: torch.Tensor, want: torch.Tensor) -> float:
    return ((found - want).norm() / want.norm()).item()


# ---- the same weights


@pytest.mark.parametrize(
    "ranks",
    [pytest.param(ranks, marks=[] if ranks == 3 else pytest.mark.slow) for ranks in (1, 2, 3, 4)],
)
def test_any_number_of_processes_gives_the_same_weights(tmp_path, monkeypatch, ranks):
    monkeypatch.setattr("kernelmill.solvers.eigenpro_sizes.PASS_ROWS", 32)
    want = weights_of_solvers(Alone())
    run("solvers", tmp_path, ranks)
    found = torch.load(tmp_path / f"weights-{ranks}.pt")
    assert set(found) == set(want)
    for name in want:
        assert want[name].norm() > 0.1 and relative(found[name], want[name]) < 1e-10, name


@pytest.mark.slow
def test_estimators_do_the_same_in_a_job(tmp_path, monkeypatch):
    X, y = data()
    np.savez(tmp_path / "d.npz", X=X, label=(y > 0).astype(int))
    estimators(tmp_path)
    run("estimators", tmp_path, 3)
    one, three = (
        torch.load(tmp_path / f"estimators-{ranks}.pt", weights_only=False) for ranks in (1, 3)
    )
    for name in ("regression", "streamed"):
        assert relative(three[name], one[name]) < 1e-9, name
    assert three["scores"] == pytest.approx(one["scores"]) and len(one["scores"]) > 2
    assert three["score"] == pytest.approx(one["score"], abs=1e-12) and one["score"] > 0.6
    assert three["warm"] > one["score"] - 0.02 and three["warm"] == pytest.approx(
        one["warm"], abs=0.02
    )
    np.testing.assert_allclose(three["loaded"], one["loaded"], atol=1e-10)
    np.testing.assert_allclose(three["direct"], one["direct"], atol=1e-10)
    for name in ("interval", "deviation", "functions"):
        np.testing.assert_allclose(three[name], one[name], rtol=1e-6, atol=1e-9, err_msg=name)
    assert three["drawn"] > 0.3
    assert kernelmill.load(tmp_path / "model-3").score(X, y) == pytest.approx(
        one["score"], abs=1e-12
    )


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_batches_are_read_in_parts(ranks):
    """Each rank looks at its own rows alone: the others' are not even there."""
    X = torch.randn(101, 3, dtype=torch.float64)
    Y = X[:, :1].clone()
    make = dict(mean=torch.zeros(1, dtype=torch.float64), seed=4)
    want = list(ArraySource(X, Y, **make).batches(16, epoch=0, position=16))
    order = torch.cat([batch.rows for batch in want])

    def work(comm):
        mine = torch.full_like(X, torch.nan)
        for i in range(0, len(order), 16):
            own = order[i : i + 16][comm.rank :: comm.size]
            mine[own] = X[own]
        return list(ArraySource(mine, Y, comm=comm, **make).batches(16, epoch=0, position=16))

    for found in run_threads(ranks, work):
        for batch, whole in zip(found, want, strict=True):
            assert (
                torch.equal(batch.X, whole.X)
                and torch.equal(batch.Y, whole.Y)
                and torch.equal(batch.rows, whole.rows)
            )


def test_sums_by_tiles_and_the_largest_of_all():
    values = torch.randn(3, 4100, 2, dtype=torch.float64)

    def work(comm):
        tiles = []
        total = by_tiles(
            comm, 4100, lambda rows: tiles.append(rows) or values[comm.rank, rows].clone()
        )
        assert largest(comm, -1.0 - comm.rank) == -1.0
        return total, len(tiles)

    for total, tiles in run_threads(3, work):
        torch.testing.assert_close(total, values.sum(0))
        assert tiles == 4


# ---- nothing is lost


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    run("run", folder, 3)
    return torch.load(folder / "alpha.pt"), int((folder / "cycles").read_text())


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_and_the_job_goes_on(tmp_path, undisturbed):
    want, cycles = undisturbed
    (tmp_path / "kill-1").write_text(str(cycles // 2))
    job = started("run", tmp_path, 3)
    job[1].wait(timeout=120)
    lost = time.monotonic()
    (code, text), (killed, _), (other, also) = finished(job, SECONDS)
    assert time.monotonic() - lost < SECONDS and killed == -signal.SIGKILL
    assert code != 0 and other != 0 and "another rank was lost" in text and "resume=True" in also
    assert not (tmp_path / "alpha.pt").exists() and any(
        (tmp_path / "run").glob("checkpoint-*/part-00002-of-00003")
    )
    run("run", tmp_path, 3)
    assert relative(torch.load(tmp_path / "alpha.pt"), want) < 1e-10
    assert int((tmp_path / "cycles").read_text()) < cycles, "it did not begin anew"


@pytest.mark.slow
@pytest.mark.parametrize("before, after", [(3, 2), (3, 1), (1, 3)])
def test_another_number_of_ranks_goes_on(tmp_path, undisturbed, before, after):
    want, cycles = undisturbed
    (tmp_path / "kill-0").write_text(str(cycles // 2))
    codes = [code for code, _ in finished(started("run", tmp_path, before))]
    assert codes[0] == -signal.SIGKILL and all(codes)
    run("run", tmp_path, after)
    assert json.loads((tmp_path / "done.json").read_text())["ranks"] == after
    assert relative(torch.load(tmp_path / "alpha.pt"), want) < 1e-10
    assert int((tmp_path / "cycles").read_text()) < cycles, "it did not begin anew"


@pytest.mark.slow
def test_a_part_that_is_damaged_is_said_and_the_checkpoint_before_is_used(tmp_path, undisturbed):
    want, cycles = undisturbed
    (tmp_path / "kill-0").write_text(str(cycles // 2))
    finished(started("run", tmp_path, 3))
    newest = max((tmp_path / "run").glob("checkpoint-*"))
    with open(newest / "part-00001-of-00003" / "run.safetensors", "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"xxx")
    said = finished(started("run", tmp_path, 2))
    assert all(code == 0 for code, _ in said) and any("is damaged" in text for _, text in said)
    assert relative(torch.load(tmp_path / "alpha.pt"), want) < 1e-10


@pytest.mark.slow
def test_torchrun_starts_it_again(tmp_path, undisturbed):
    want, cycles = undisturbed
    (tmp_path / "kill-2").write_text(str(cycles // 2))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=3",
        "--max-restarts=1",
        JOB,
        "run",
    ]
    subprocess.run(
        [*command, str(tmp_path)], env=environment(), check=True, timeout=180, capture_output=True
    )
    assert relative(torch.load(tmp_path / "alpha.pt"), want) < 1e-10


@pytest.mark.slow
def test_all_stop_together_when_one_is_asked_to(tmp_path, undisturbed):
    want, cycles = undisturbed
    job = started("run", tmp_path, 2)
    while not (tmp_path / "cycles").exists() and job[0].poll() is None:
        time.sleep(0.01)
    job[1].send_signal(signal.SIGINT)
    assert [code for code, _ in finished(job)] == [0, 0]
    assert (
        json.loads((tmp_path / "done.json").read_text())["stopped"]
        and int((tmp_path / "cycles").read_text()) < cycles
    )
    (tmp_path / "cycles").unlink()
    before = max((tmp_path / "run").glob("checkpoint-*"))
    job = started("run", tmp_path, 2)
    while not (tmp_path / "cycles").exists() and job[0].poll() is None:
        time.sleep(0.01)
    for process in job:  # as torchrun and schedulers do
        process.send_signal(signal.SIGTERM)
    assert [code for code, _ in finished(job)] == [-signal.SIGTERM] * 2
    assert max((tmp_path / "run").glob("checkpoint-*")) > before
    run("run", tmp_path, 2)
    assert relative(torch.load(tmp_path / "alpha.pt"), want) < 1e-10


# ---- the command line


@pytest.mark.slow
def test_the_command_line_as_a_job(tmp_path):
    X, y = data(1500)
    table = np.c_[X, y]
    np.savetxt(
        tmp_path / "d.csv", table, delimiter=",", header="a,b,c,d,y", comments="", fmt="%.6f"
    )
    flags = [
        "--kernel",
        "laplacian",
        "--bandwidth",
        "3",
        "--n-centers",
        "200",
        "--solver",
        "eigenpro4",
        "--json",
    ]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "kernelmill",
    ]

    def said(*args: str) -> dict:
        made = subprocess.run(
            args,
            env=environment(),
            cwd=tmp_path,
            check=True,
            timeout=120,
            capture_output=True,
            text=True,
        )
        return json.loads(made.stdout)  # one object: the other rank is silent

    assert said(*command, "train", "d.csv", *flags)["centers"] == 200
    assert not (tmp_path / "d-model.run").exists()
    together = said(*command, "evaluate", "d-model", "d.csv", "--json", "--html", "d.html")
    assert "Which columns matter" in (tmp_path / "d.html").read_text(encoding="utf-8")
    alone = said(sys.executable, "-m", "kernelmill", "evaluate", "d-model", "d.csv", "--json")
    assert (
        together["metrics"] == pytest.approx(alone["metrics"], rel=1e-5)
        and alone["metrics"]["r2"] > 0.6
    )
    assert (
        said(
            sys.executable,
            "-m",
            "kernelmill",
            "train",
            "d.csv",
            *flags,
            "--ranks",
            "2",
            "--out",
            "two",
        )["centers"]
        == 200
    )
    # The launcher was started by the command itself.
    assert load(tmp_path / "two").plan_.ranks == 2


def test_mistakes_are_said(monkeypatch):
    X, y = data(500)
    with pytest.raises(InputError, match="ranks=0 was given, expected a whole number of 1 or more"):
        KernelRegressor(ranks=0).fit(X, y)
    with pytest.raises(
        InputError, match=r"ranks=2 was given in a job of 1; .*`torchrun --nproc-per-node 2`"
    ):
        KernelRegressor(ranks=2).fit(X, y)
    monkeypatch.setenv("KERNELMILL_SILENCE", "long")
    with pytest.raises(InputError, match="expected a number of seconds above 0"):
        kernelmill.distributed.heartbeat.silence()


# ---- what is predicted


def test_predicted_memory_and_seconds_fall_with_the_ranks():
    base = Plan("eigenpro4", 1_000_000, 90, 10, 400_000, x_bytes=4, budget=64 << 30)
    solver = EigenPro4(projection="carried")
    plans = [solver.plan(Plan(**{**base.to_dict(), "ranks": ranks})) for ranks in (1, 2, 4, 8)]
    assert len({(plan.s, plan.q, plan.projection, plan.control_variate) for plan in plans}) == 1
    # Some is of one size: factors made together.
    assert all(more.bytes < 0.75 * one.bytes for one, more in itertools.pairwise(plans))
    assert plans[-1].bytes < 0.3 * plans[0].bytes
    fast, slow = Network(1e-5, 1e11), Network(1e-3, 1e8)
    forecasts = [
        kernelmill.plan(n=10**6, d=90, n_centers=200_000, n_outputs=10, ranks=8, network=net)
        for net in (fast, slow)
    ]
    alone = kernelmill.plan(n=10**6, d=90, n_centers=200_000, n_outputs=10)
    seconds = [f.candidates[-1].plan.seconds for f in (alone, *forecasts)]
    assert seconds[0] / 8 < seconds[1] < seconds[2] and seconds[1] < seconds[0] / 4


# ---- several hosts


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts():
    """Three network namespaces with addresses of their own, on one bridge: three hosts as far as
    TCP can tell.
    """
    names = [f"kmill{os.getpid() % 10_000}{i}" for i in range(3)]
    bridge = f"kmb{os.getpid() % 10_000}"
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for i, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b")
            ip("link", "set", f"{name}a", "master", bridge, "up")
            ip("link", "set", f"{name}b", "netns", name)
            ip("-n", name, "addr", "add", f"10.231.7.{i + 1}/24", "dev", f"{name}b")
            ip("-n", name, "link", "set", f"{name}b", "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    else:
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            subprocess.run(["ip", "link", "del", f"{name}a"], capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)


def on_hosts(names: list[str], folder: Path) -> list[subprocess.Popen]:
    def start(rank: int, name: str) -> subprocess.Popen:
        own = environment(
            RANK=str(rank),
            WORLD_SIZE="3",
            LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="1",
            MASTER_ADDR="10.231.7.1",
            MASTER_PORT="29511",
            GLOO_SOCKET_IFNAME=f"{name}b",
            TP_SOCKET_IFNAME=f"{name}b",
        )
        command = ["ip", "netns", "exec", name, sys.executable, JOB, "run", str(folder)]
        return subprocess.Popen(command, env=own, stderr=subprocess.PIPE, text=True)

    return [start(rank, name) for rank, name in enumerate(names)]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")
def test_a_host_that_is_cut_off_ends_the_job_and_it_goes_on(tmp_path, undisturbed, hosts):
    want, cycles = undisturbed
    job = on_hosts(hosts, tmp_path)
    while (
        not (tmp_path / "cycles").exists() or int((tmp_path / "cycles").read_text()) < cycles // 2
    ):
        assert all(process.poll() is None for process in job)
        time.sleep(0.005)
    ip("link", "set", f"{hosts[2]}a", "down")  # silence: no connection is closed, nothing answers
    lost = time.monotonic()
    said = finished(job, 2 * SECONDS)
    assert time.monotonic() - lost < SECONDS
    assert all(code != 0 and "another rank was lost" in text for code, text in said), said
    ip("link", "set", f"{hosts[2]}a", "up")
    for code, text in finished(on_hosts(hosts, tmp_path)):
        assert code == 0, text
    assert relative(torch.load(tmp_path / "alpha.pt"), want) < 1e-10
