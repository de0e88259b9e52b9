"""The generator's time: a slot is taken before a pull and given back when the generator is idle again."""

import asyncio


class Slot:
    """One taken slot; giving it back twice is harmless."""

    __slots__ = ("_slots",)

    def __init__(self, slots: "Slots") -> None:
        """Made by `Slots.take`."""
        self._slots: Slots | None = slots

    def release(self) -> None:
        """Give it back."""
        if self._slots is not None:
            self._slots.give_back()
            self._slots = None


class Slots:
    """How many jobs may generate at once, and how many do."""

    def __init__(self, total: int) -> None:
        """All are free."""
        self.total = total
        self.taken = 0
        self._freed = asyncio.Event()

    @property
    def free(self) -> int:
        """How many are free."""
        return self.total - self.taken

    def take(self) -> Slot:
        """Take a free one."""
        if not self.free:
            msg = f"all {self.total} slots are taken"
            raise RuntimeError(msg)
        self.taken += 1
        return Slot(self)

    def give_back(self) -> None:
        """Count one more as free; for `Slot`."""
        self.taken -= 1
        self._freed.set()

    async def wait_free(self, least: int = 1) -> None:
        """Return when at least so many are free."""
        while self.free < least:
            self._freed.clear()
            await self._freed.wait()
