"""Synchronous updates: each averages the gradients of several workers, which wait for it."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from runtime.cluster.membership import Membership
from runtime.updates.aggregation import Aggregation
from runtime.updates.exchange import Exchange, ExchangeFunction, Updates
from runtime.updates.lost_workers import watch
from runtime.updates.meeting import Rule
from runtime.updates.packing import Packing, Selection
from runtime.updates.ps_shard import PsShard, make_updates


def build_sync_updates(
    packing: Packing,
    selections: Sequence[Selection],
    shards: Sequence[PsShard],
    build_exchange: ExchangeFunction,
    rule: Rule,
    membership: Membership,
) -> Updates:
    """Build a run of exchanges, one for each selection, of which each waits for the update that it is a part of.

    An update averages the gradients of several exchanges (Chen et al. 2016, arXiv:1604.00981).
    With fewer gradients in an update than there are workers, the slowest ones are dropped: these come from the backup
    workers.
    """
    task, aggregations = membership.task, [Aggregation(shard, rule) for shard in shards]
    exchanges: list[Exchange] = []
    taken: list[list[tf.Tensor]] = [[] for _ in shards]  # the steps that each exchange has taken, on each ps
    for number, selection in enumerate(selections):
        with tf.name_scope("exchange"):
            if not number:
                nums_updates = [aggregation.join(task.index, []) for aggregation in aggregations]
            else:  # the others wait for this worker, unless it was found lost: then they do again in its next run
                nums_updates = [a.read(after=of_ps[-1:]) for a, of_ps in zip(aggregations, taken, strict=True)]
            vectors = packing.read(selection, after=[[num_updates] for num_updates in nums_updates])
            with tf.device(task.device):
                exchanges.append(build_exchange(vectors, selection, [], number))
            for ps, aggregation in enumerate(aggregations):
                with tf.name_scope("aggregate"):
                    vector, places = exchanges[-1].gradients[ps], selection.places[ps]
                    taken[ps].append(aggregation.add(vector, places, nums_updates[ps], task.index))
    updates = make_updates(shards, taken, exchanges)
    if not rule.is_strict:  # each ps has dropped other gradients, so each may reach the end at another time
        with tf.device(task.device):
            steps = [shard.read_steps(after=of_ps) for shard, of_ps in zip(shards, taken, strict=True)]
            updates = updates._replace(global_step=tf.reduce_min(tf.stack(steps)))
    return watch(updates._replace(num_replicas=rule.num_gradients), shards, aggregations, rule, membership)
