"""How fast a GPU computes, as the pages take it where nothing was measured: two rates by GPU, each figure with its source.

`PRODUCT_RATE` is for what stands beside messages: a page that hides, adds or overlaps messages computes at this rate.
`TRAINING_RATE` is for a whole step: bubble, messages and waiting are inside it, so nothing may be added to it, and nothing
hides behind it.
"""

__all__ = ["PRODUCT_RATE", "TRAINING_RATE"]

PRODUCT_RATE = {"A100": 250e12, "H100": 680e12}
"""Floating-point operations a second in the large 16-bit matrix products of a training, by GPU.

Fitted, not measured: 0.81 of NVIDIA's peak of 312e12 and 0.69 of 989e12. One number a GPU was fitted to one published step
(GPT of 39 billion parameters on 512 A100, Narayanan et al. 2021, table 1; Llama 3 405B on 16,384 H100, Grattafiori et al.
2024, table 4) by a model that counts bubble, messages, recomputation and memory traffic apart. The same model then misses 46
other published steps of dense models by 4.2 % in the median and 15 % at worst; the three published steps of Llama 3 405B by
themselves want 630e12 to 680e12. Other software is slower: torchtitan's published steps on H100 want 380e12 to 490e12.
Measured, one product alone reaches 271e12 and 794e12 with the best of many shapes (stas00/ml-engineering,
compute/accelerator/README.md, commit b9e29720ee, CC BY-SA 4.0)."""

TRAINING_RATE = {"A100": 160e12, "H100": 400e12}
"""Floating-point operations a second that whole trainings reached, their own operations counted once, by GPU.

A100: GPT-3 of 175 billion parameters on 64 GPUs, 51 % of peak (Korthikanti et al. 2022, table 5, selective recomputation).
H100: Llama 3 405B on 16,384 GPUs (Grattafiori et al. 2024, table 4); on 8,192 it reached 430e12."""
