"""One process of Gloo's ``all_reduce``; prints milliseconds. ``gloo_peer.py ADDRESS SIZE REPEATS RANK KILOBYTES...``.

ADDRESS is where the process of rank 0 listens, such as 127.0.0.1:29502.

Runs in an environment of PyTorch, without tfos_ml.
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

ADDRESS = sys.argv[1]
SIZE, REPEATS, RANK, *KILOBYTES = map(int, sys.argv[2:])


def milliseconds(kilobytes: int) -> float:
    """Median of some sums, after two that are not counted."""
    values = torch.ones(kilobytes * 250)
    found = []
    for _ in range(2 + (REPEATS if kilobytes < 100_000 else min(REPEATS, 5))):
        began = time.perf_counter()
        dist.all_reduce(values)
        found.append(1e3 * (time.perf_counter() - began))
    return statistics.median(found[2:])


torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://{ADDRESS}", rank=RANK, world_size=SIZE)
print(json.dumps([milliseconds(kilobytes) for kilobytes in KILOBYTES]))
dist.destroy_process_group()
