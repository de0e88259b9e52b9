"""NATS identities: an nkey is an Ed25519 pair; the seed is the secret, the public half names the user everywhere.

The server's configuration holds public keys only. Called by `coordinator/embedded.py` and the command line.
"""

import os

import nkeys

_RANDOM_BYTES = 32


def new_seed() -> str:
    """Return the seed of a new user key, drawn from the system's randomness: `SU…`, a secret."""
    seed: bytes = nkeys.encode_seed(os.urandom(_RANDOM_BYTES), nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def public_key(seed: str) -> str:
    """Return the public half (`U…`) of a seed; ValueError if it is none."""
    try:
        pair = nkeys.from_seed(bytearray(seed.strip().encode()))
    except (nkeys.NkeysError, ValueError) as error:
        msg = f"not an nkey seed: {type(error).__name__}"
        raise ValueError(msg) from None
    public: bytes = pair.public_key
    pair.wipe()
    return public.decode()
