"""Every test starts from the same random state, on one thread, and can be interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)
# A shell starts what it puts in the background deaf to SIGINT, and so would be all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _fixed_random_state() -> Iterator[None]:
    torch.manual_seed(20240229)
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)
