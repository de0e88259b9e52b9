"""Taking a message off SUBMIT or REPORTS, or leaving it for later; the coordinator alone settles (DESIGN §1).

Both are one-way: what is lost comes again after ack-wait, and is then the same job or a duplicate.
"""

from shared.bus import Bus, BusError, Message

PAUSE_S = 2.0
"""When a message that could not be handled now comes again."""

SLICE = 32
"""Messages handled between two chances for everything else on the loop."""


async def taken(bus: Bus, message: Message) -> None:
    """Take a message off its stream: what it asked for is committed, or on record as refused."""
    try:
        await bus.publish(message.reply, b"+ACK")
    except BusError:
        return


async def later(bus: Bus, message: Message) -> None:
    """Have a message handed out again after a pause: the ledger is away."""
    try:
        await bus.nak(message, PAUSE_S)
    except BusError:
        return
