"""How far this machine's clock is from a time server's: one SNTP question (RFC 4330). Called by the doctor."""

import asyncio
import struct
import time
from collections.abc import Callable
from typing import Final

PORT: Final = 123
_EPOCH_S: Final = 2208988800
"""From 1900, where NTP begins, to 1970."""
_PACKET: Final = 48
_CLIENT: Final = 0x23  # version 4, mode 3
_SERVER_MODE: Final = 4


class _Answer(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.packet: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _: object) -> None:
        if not self.packet.done():
            self.packet.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.packet.done():
            self.packet.set_exception(exc)


async def skew_s(
    host: str, *, port: int = PORT, within_s: float = 2.0, wall: Callable[[], float] = time.time
) -> float | None:
    """Return by how many seconds this clock is ahead (below 0: behind); None: the server does not tell."""
    try:
        async with asyncio.timeout(within_s):
            transport, answer = await asyncio.get_running_loop().create_datagram_endpoint(
                _Answer, remote_addr=(host, port)
            )
            try:
                sent_at = wall()
                mark = _stamp(sent_at)
                transport.sendto(bytes([_CLIENT]) + bytes(39) + mark)
                packet = await answer.packet
                taken_at = wall()
            finally:
                transport.close()
    except (OSError, TimeoutError):
        return None
    if len(packet) < _PACKET or packet[0] & 7 != _SERVER_MODE or packet[1] == 0 or packet[24:32] != mark:
        return None
    theirs = (_seconds(packet[32:40]) + _seconds(packet[40:48])) / 2
    return (sent_at + taken_at) / 2 - theirs


def _stamp(at: float) -> bytes:
    whole = int(at)
    return struct.pack("!II", (whole + _EPOCH_S) & 0xFFFFFFFF, int((at - whole) * 2**32) & 0xFFFFFFFF)


def _seconds(stamp: bytes) -> float:
    whole, fraction = struct.unpack("!II", stamp)
    era = 2**32 if whole < 2**31 else 0  # from 2036 on NTP counts anew
    return float(whole + era - _EPOCH_S + fraction / 2**32)
