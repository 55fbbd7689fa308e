from ringtree.theory import nccl as nccl
from ringtree.theory.comparing import cost_table as cost_table
from ringtree.theory.costs import (
    Bound as Bound,
    Cost as Cost,
    cost_of as cost_of,
    lower_bound as lower_bound,
    textbook_time as textbook_time,
)
from ringtree.theory.gaps import HOLD_A_GAP as HOLD_A_GAP, FittedGap as FittedGap, fit_gap as fit_gap
from ringtree.theory.lines import fastest as fastest, fit_line as fit_line, fit_lines as fit_lines, misses as misses
from ringtree.theory.machines import (
    HELD as HELD,
    NAMES as NAMES,
    Fitted as Fitted,
    fit_machine as fit_machine,
    held_out as held_out,
)
from ringtree.theory.model import (
    COLLECTIVES as COLLECTIVES,
    Model as Model,
    Protocol as Protocol,
    closed_form as closed_form,
    ring_share as ring_share,
)
from ringtree.theory.racing import Race as Race, race as race
from ringtree.theory.rates import PRODUCT_RATE as PRODUCT_RATE, TRAINING_RATE as TRAINING_RATE
from ringtree.theory.table import ALGORITHMS as ALGORITHMS, Algorithm as Algorithm, find as find
from ringtree.theory.wires import CARD_GAP as CARD_GAP, NVLINK_GAP as NVLINK_GAP, card as card, nvlink as nvlink
