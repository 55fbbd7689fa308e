import os

import torch
import torch.distributed as dist

device = torch.device("cpu")
if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)

dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
x = torch.tensor([dist.get_rank() + 1.0], device=device)
dist.all_reduce(x)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x.item()}\n", end="")
dist.destroy_process_group()
