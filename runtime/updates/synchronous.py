"""Synchronous updates: each averages the gradients of several exchanges (Chen et al. 2016, arXiv:1604.00981)."""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from runtime.cluster.membership import Membership
from runtime.process.threads import SessionThread
from runtime.updates import lost_workers
from runtime.updates.aggregation import Aggregation, Rule
from runtime.updates.exchange import Exchange, ExchangeFunction, Updates
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

    With fewer gradients in an update than there are workers, the slowest ones are dropped: these come from the backup
    workers.
    """
    task, aggregations = membership.task, [Aggregation(shard, rule) for shard in shards]
    exchanges: list[Exchange] = []
    taken: list[list[tf.Tensor]] = [[] for _ in shards]  # the steps that each exchange has taken, on each ps
    for number, selection in enumerate(selections):
        with tf.name_scope("exchange"):
            nums_updates = [a.join(task.index, of_ps[-1:]) for a, of_ps in zip(aggregations, taken, strict=True)]
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
    hooks: list[tf.train.SessionRunHook] = []
    if task.is_chief:
        lost = lost_workers.LostWorkersHook(aggregations, rule, membership)
        look = SessionThread("look", lost.look, lost_workers.LOOK_SECS, f"{task} could not see who is lost")
        hooks = [lost, look]
    return updates._replace(
        num_replicas=rule.num_gradients,
        hooks=hooks,
        unsaved_variables=[*updates.unsaved_variables, *(v for a in aggregations for v in a.variables)],
    )
