"""Several ranks that train one policy: who they are, what each holds, and how they end."""

from grpo.distributed.ranks import SOLO, Ranks, local_world_size, rank_seed, start_ranks
from grpo.distributed.shard import make_mesh, reshard, shard
from grpo.distributed.stop import EXIT_STOPPED, StopRequest
from grpo.distributed.weights import WHOLE, ShardedWeights, WeightAccess

__all__ = [
    "EXIT_STOPPED",
    "SOLO",
    "WHOLE",
    "Ranks",
    "ShardedWeights",
    "StopRequest",
    "WeightAccess",
    "local_world_size",
    "make_mesh",
    "rank_seed",
    "reshard",
    "shard",
    "start_ranks",
]
