from ringtree.prove.proving import assert_equal_to_one as assert_equal_to_one, prove as prove
from ringtree.prove.report import Report as Report
from ringtree.prove.step import Flat as Flat, Step as Step, flat_shards as flat_shards
