from ringtree.simulated.sketches import (
    context as context,
    data_parallel as data_parallel,
    experts as experts,
    pipeline as pipeline,
    sharded as sharded,
    tensor_parallel as tensor_parallel,
    uneven as uneven,
)
from ringtree.simulated.sketches.layers import Layer as Layer, layers_of as layers_of, transformer as transformer
