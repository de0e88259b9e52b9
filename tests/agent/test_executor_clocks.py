"""The three clocks of a generation, moved by hand."""

import asyncio

import pytest

from agent.executors.clocks import Clocks, Limit, Limits, OutOfTime
from agent.executors.comfyui_settings import ComfyUISettings
from agent.executors.openai import OpenAISettings
from tests.support.text_rig import CountingClock


class Hand:
    """Time that only the test moves."""

    def __init__(self):
        self.at = 1000.0

    def __call__(self):
        return self.at

    def pass_s(self, clocks, seconds, *, step=5.0):
        """Let time pass while the clocks are looked at, so that it is no sleep; return the first that ran out."""
        end = self.at + seconds
        while self.at < end:
            self.at = min(self.at + step, end)
            if (over := clocks.overdue()) is not None:
                return over
        return None


def clocks_of(**limits):
    hand = Hand()
    return hand, Clocks(Limits(**limits), hand)


def test_the_first_output_has_a_clock_of_its_own():
    hand, clocks = clocks_of(first_s=100, idle_s=10)
    assert hand.pass_s(clocks, 99) is None
    over = hand.pass_s(clocks, 2)
    assert (over.limit, over.limit_s) == (Limit.FIRST, 100)


def test_every_output_starts_the_idle_clock_again():
    hand, clocks = clocks_of(first_s=100, idle_s=10)
    hand.pass_s(clocks, 50)
    for _ in range(20):
        clocks.output()
        assert hand.pass_s(clocks, 9) is None
    assert clocks.first_s == 50
    assert hand.pass_s(clocks, 2).limit is Limit.IDLE


def test_all_outputs_together_have_a_clock():
    hand, clocks = clocks_of(idle_s=10, total_s=100)
    overs = []
    while not overs and hand.at < 2000:
        clocks.output()
        overs += [over for over in [hand.pass_s(clocks, 5)] if over]
    assert overs[0].limit is Limit.TOTAL
    assert clocks.elapsed_s == 100


def test_who_waits_in_a_queue_starts_the_first_clock_again_but_not_the_others():
    hand, clocks = clocks_of(first_s=100, idle_s=10, total_s=1000)
    for _ in range(9):
        assert hand.pass_s(clocks, 90) is None
        clocks.wait_again()
    assert hand.pass_s(clocks, 1000).limit is Limit.FIRST
    hand, clocks = clocks_of(first_s=100, idle_s=10)
    clocks.output()
    hand.pass_s(clocks, 9)
    clocks.wait_again()
    assert hand.pass_s(clocks, 2).limit is Limit.IDLE


@pytest.mark.parametrize("first", [True, False])
def test_time_asleep_counts_but_who_just_woke_may_give_a_sign_of_life(first):
    hand, clocks = clocks_of(first_s=50, idle_s=50, total_s=10_000, wake_s=15)
    if not first:
        clocks.output()
    hand.at += 5000  # nobody looked: the machine slept
    assert clocks.overdue() is None
    assert hand.pass_s(clocks, 14) is None
    assert hand.pass_s(clocks, 2).limit is (Limit.FIRST if first else Limit.IDLE)
    clocks.output()
    assert clocks.overdue() is None


@pytest.mark.parametrize(
    ("limits", "silent_s"),
    [(OpenAISettings(), 60), (ComfyUISettings(workflows=True), 180)],
    ids=["text", "comfyui"],
)
def test_after_a_sleep_a_model_has_the_time_to_come_back_into_memory(limits, silent_s):
    hand = Hand()
    clocks = Clocks(limits, hand)
    clocks.output()
    hand.at += 1000
    assert clocks.overdue() is None
    assert hand.pass_s(clocks, silent_s - 1) is None
    assert hand.pass_s(clocks, 2).limit is Limit.IDLE


def test_a_sleep_does_not_lengthen_the_whole():
    hand, clocks = clocks_of(total_s=1000, wake_s=15)
    hand.at += 1001
    assert clocks.overdue().limit is Limit.TOTAL


async def test_the_block_is_stopped_by_the_clock_and_says_which():
    clock = CountingClock()
    clocks = Clocks(Limits(first_s=100, wake_s=0), clock.now)
    waiting = asyncio.Event()

    async def block():
        async with clocks.running():
            waiting.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await waiting.wait()
    await clock.looked_at()
    assert not task.done()
    clock.moved_s += 101
    with pytest.raises(OutOfTime) as raised:
        await asyncio.wait_for(task, 10)
    assert raised.value.limit is Limit.FIRST


async def test_other_errors_and_cancelling_pass_through_the_block():
    clocks = Clocks(Limits(), CountingClock().now)
    with pytest.raises(TimeoutError):
        async with clocks.running():
            raise TimeoutError
    with pytest.raises(KeyError):
        async with clocks.running():
            raise KeyError
    started = asyncio.Event()

    async def block():
        async with clocks.running():
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await started.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
