"""What stands for torch.distributed and its wire on live ranks: the emulated link, streams, and the tracer."""
