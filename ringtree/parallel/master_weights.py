"""Mixed precision: a model of 16 bits a weight, whose optimizer steps on copies of 32 bits.

A small step is lost where a weight has 8 bits of mantissa: it rounds back to what it was. So the
optimizer keeps copies, its masters, to which steps add up. Method: Micikevicius et al., "Mixed
Precision Training", 2018. With Adam a weight takes 2 bytes, its gradient 2, and the optimizer 12:
master and two moments. Runs on torch 2.1 and later.
"""

import torch


class MasterWeights:
    """An optimizer of `parameters` that steps on copies of them in `dtype`, and writes these back.

        optimizer = MasterWeights(net.parameters(), partial(torch.optim.AdamW, lr=3e-4))
        share = ZeRO3(units, dist, partial(MasterWeights, make=partial(torch.optim.AdamW, lr=3e-4)))

    make: a function from tensors to an optimizer; each has `of`, the parameter that it stands for.
    What somebody writes to the parameters between two steps, such as a checkpoint, goes on from there.
    """

    def __init__(self, parameters, make, dtype=torch.float32):
        self.parameters = [each for each in parameters if each.requires_grad]
        self.masters = []
        for each in self.parameters:
            self.masters.append(torch.nn.Parameter(each.detach().to(dtype, copy=True)))
            self.masters[-1].of = getattr(each, "of", each)
        self.optimizer = make(self.masters)

    @property
    def state(self):
        """The inner optimizer's state, by master."""
        return self.optimizer.state

    @property
    def param_groups(self):
        """The inner optimizer's groups: a schedule writes its rate to them."""
        return self.optimizer.param_groups

    @torch.no_grad()
    def step(self):
        for parameter, master in zip(self.parameters, self.masters):
            written = parameter != master.to(parameter.dtype)
            master.copy_(torch.where(written, parameter.to(master.dtype), master))
            master.grad = None if parameter.grad is None else parameter.grad.to(master.dtype)
        self.optimizer.step()
        for parameter, master in zip(self.parameters, self.masters):
            parameter.copy_(master)
            master.grad = None

    def zero_grad(self, set_to_none=True):
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def state_dict(self):
        masters = [master.detach() for master in self.masters]
        return {"masters": masters, "optimizer": self.optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state["optimizer"])
        for parameter, master, saved in zip(
            self.parameters, self.masters, state["masters"], strict=True
        ):
            master.copy_(saved)
            parameter.copy_(master)
