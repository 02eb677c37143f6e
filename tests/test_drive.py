"""The loop around every solver, with a solver that does as it is told."""

from dataclasses import dataclass, replace

import pytest
import torch

from conftest import make_problem
from kernelmill import InputError
from kernelmill.distributed.threads import run_threads
from kernelmill.planning.plan import Plan
from kernelmill.solvers import Ended, Solver, State, drive
from kernelmill.solvers.base import Diverged, Report, Setup
from kernelmill.solvers.drive import SMALLEST_SCALE


@dataclass(frozen=True)
class Lean(Setup):
    plan: Plan
    times: int = 0

    def leaner(self):
        return replace(self, times=self.times + 1)


@dataclass(eq=False)
class Told(Solver):
    """Adds 1 to every weight in each round; `told` has, for each round that is tried, what goes
    wrong in it.
    """

    told: tuple = ()
    name = "told"

    def plan(self, base):
        return base

    def prepare(self, problem, plan, state):
        self.left, self.setups = list(self.told), []
        return Lean(plan), state or State(
            plan, torch.zeros(len(problem.Z), plan.c, dtype=torch.float64)
        )

    def rounds(self, problem, setup, state):
        while state.epoch < setup.plan.epochs:
            self.setups.append(setup.times)
            trouble = self.left.pop(0) if self.left else None
            if trouble is not None:
                raise trouble
            half = replace(state, alpha=state.alpha + 1, position=setup.plan.n)
            yield Report("projection", half, eta=half.step_scale)
            state = replace(half, epoch=state.epoch + 1, position=0)
            yield Report("epoch", state, eta=state.step_scale)


@pytest.fixture
def tiny():
    return make_problem(n=20, p=5)


def run(problem, told=(), epochs=4, listen=lambda event: False, state=None):
    solver, kinds = Told(told), []
    done = problem.drive(
        solver, epochs=epochs, state=state, on_event=lambda e: kinds.append(e.kind) or listen(e)
    )
    return done, kinds, solver


def test_a_run_begins_reports_and_ends(tiny):
    done, kinds, _ = run(tiny, epochs=2)
    assert kinds == ["start", "projection", "epoch", "projection", "epoch", "end"]
    assert done.ended is Ended.DONE and not done.worth_a_word and (done.state.alpha == 2).all()


def test_each_failure_goes_one_state_further_back_with_half_the_step(tiny):
    wrong = Diverged(1.0)
    done, kinds, _ = run(tiny, [None, None, None, wrong, wrong, wrong, None], epochs=4)
    assert kinds.count("step_back") == 3 and done.ended is Ended.DONE
    assert (
        done.state.epoch == 4 and (done.state.alpha == 4).all() and done.state.step_scale == 1 / 8
    )
    backs = []
    run(
        tiny,
        [None, None, None, wrong, wrong, wrong],
        listen=lambda e: e.kind == "step_back" and backs.append(e.epoch),
    )
    assert backs == [3, 2, 0]  # the last good state, the one before, the start


def test_a_run_that_fails_at_every_step_size_keeps_its_last_good_weights(tiny):
    done, kinds, _ = run(tiny, [None, *[Diverged(1.0)] * 99])
    assert (
        done.ended is Ended.DIVERGED
        and done.worth_a_word
        and done.state.step_scale < SMALLEST_SCALE
    )
    assert kinds.count("step_back") == 13 and kinds[-1] == "end"


def test_out_of_memory_the_round_is_done_again_with_less(tiny):
    done, kinds, solver = run(
        tiny, [None, torch.OutOfMemoryError(), torch.OutOfMemoryError(), None], epochs=3
    )
    assert (
        kinds.count("less_memory") == 2
        and done.ended is Ended.DONE
        and (done.state.alpha == 3).all()
    )
    assert solver.setups == [0, 0, 1, 2, 2]


def test_interrupted_it_keeps_the_last_good_weights(tiny):
    done, kinds, _ = run(tiny, [None, None, KeyboardInterrupt()])
    assert done.ended is Ended.INTERRUPTED and done.worth_a_word and (done.state.alpha == 2).all()
    assert kinds[-2:] == ["interrupted", "end"]


def test_interrupted_before_there_are_weights_it_says_so():
    class Later(Told):
        def prepare(self, problem, plan, state):
            return super().prepare(problem, plan, state)[0], None

        def rounds(self, problem, setup, state):
            yield Report("projection", None, rows=3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_problem(n=20, p=5).drive(Later(), epochs=1, on_event=lambda event: True)


def test_stopped_at_the_last_projection_of_an_epoch_the_epoch_is_whole(tiny):
    done, kinds, _ = run(tiny, listen=lambda event: event.kind == "projection")
    assert kinds == ["start", "projection", "epoch", "end"]
    assert done.ended is Ended.STOPPED and done.state.epoch == 1 and not done.worth_a_word


def test_a_solver_says_that_it_fell_short():
    class Short(Told):
        def rounds(self, problem, setup, state):
            yield from super().rounds(problem, setup, state)
            yield Report(
                "epoch", replace(state, alpha=state.alpha - 1), short="there is more to be had"
            )

    done = make_problem(n=20, p=5).drive(Short(), epochs=2)
    assert (
        done.ended is Ended.SHORT
        and done.why == "there is more to be had"
        and (done.state.alpha == -1).all()
    )


def test_a_run_goes_on_from_a_state(tiny):
    half, _, _ = run(
        tiny, epochs=4, listen=lambda event: event.kind == "epoch" and event.epoch == 2
    )
    done, _, _ = run(tiny, state=half.state)
    assert half.state.epoch == 2 and done.state.epoch == 4 and (done.state.alpha == 4).all()


def test_only_solvers_that_are_shared_out_run_on_several_ranks(tiny):
    def work(comm):
        with pytest.raises(InputError, match="runs on one rank, 2 were given"):
            drive(Told(), tiny.shared(comm), tiny.plan(Told(), epochs=1))

    run_threads(2, work)


def test_a_state_to_begin_with_is_kept_and_not_reported(tiny):
    class Begins(Told):
        def rounds(self, problem, setup, state):
            yield Report("start", replace(state, alpha=state.alpha + 5))

    kinds = []
    done = tiny.drive(Begins(), epochs=1, on_event=lambda event: bool(kinds.append(event.kind)))
    assert kinds == ["start", "end"] and done.ended is Ended.DONE and (done.state.alpha == 5).all()
