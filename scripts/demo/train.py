"""A small two-rank training to try launchers on: DDP over gloo, on the accelerator if there is one. Needs torch.

The allocator runs with expandable segments; around each weight sync, where engines refuse them for memory that they
share, they are off. Each rank has its own environment, decided by a policy, whatever shell or launcher it is run from.

    python train.py --ranks 2 --steps 30
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any

import spawnguard.multiprocessing as mp

FEATURES, HIDDEN, BATCH = 8, 32, 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--sync-every", type=int, default=10, help="steps between weight syncs")
    parser.add_argument("--policy", default="fsdp-training", help="a profile or a file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        rendezvous = f"file://{directory}/rendezvous"
        settings = (rendezvous, options.ranks, options.steps, options.sync_every)
        mp.spawn(
            train,
            settings,
            nprocs=options.ranks,
            env=lambda rank: {"RANK": str(rank), "WORLD_SIZE": str(options.ranks)},
            policy=options.policy,
            allocator={"expandable_segments": True},
        )
    print("done")
    return 0


def train(rank: int, rendezvous: str, ranks: int, steps: int, sync_every: int) -> None:
    """In each child: torch is imported here, with the environment already right."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    device = (
        torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")
    )
    assert os.environ["RANK"] == str(rank)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)).to(
        device
    )
    trained = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.02)
    served = {name: torch.zeros_like(weight) for name, weight in model.state_dict().items()}
    generator = torch.Generator().manual_seed(1 + rank)
    for step in range(1, steps + 1):
        inputs = torch.randn(BATCH, FEATURES, generator=generator).to(device)
        loss = torch.nn.functional.mse_loss(trained(inputs), inputs[:, :2].sum(1, keepdim=True).sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % sync_every == 0:
            outcome = sync(model, served)
            if rank == 0:
                print(
                    f"step {step}: loss {loss.item():.3f}, synced with expandable segments off: {outcome}", flush=True
                )
    dist.destroy_process_group()


def sync(model: Any, served: dict[str, Any]) -> str:
    """Rank 0's weights to everybody's serving copy, in memory that was allocated without expandable segments."""
    import torch.distributed as dist

    import spawnguard.allocator

    with spawnguard.allocator.using(expandable_segments=False) as change:
        for name, weight in model.state_dict().items():
            buffer = weight.detach().cpu().clone()
            dist.broadcast(buffer, src=0)
            served[name].copy_(buffer)
    return change.outcomes["expandable_segments"].outcome


if __name__ == "__main__":
    sys.exit(main())
