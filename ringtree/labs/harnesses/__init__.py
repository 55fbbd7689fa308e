"""Harnesses: what each rank runs where a lab's check trains a small model by the learner's function. One file a lab.

    def step(function, weights, rows, dist):        # the learner's function, the case's `given`, and `dist`
        net = layers(weights)                       # `nets`: models of plain tensors, and how long they compute
        ...
        return {"loss": loss, "held": memory.most}  # `held`: bytes that a rank has made at once

    EXERCISES = {"name": Program(cases, hints, levels, builtin=True, adds=False, harness=step)}

A harness runs where the learner's function does: on simulated ranks, which are threads then (`simulate(…, autograd=True)`), on
live ranks, and in the sandbox where marks are made. What it returns is compared, and what it sends and computes is counted.
"""
