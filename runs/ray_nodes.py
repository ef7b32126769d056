"""A Ray cluster of several nodes on this machine: prints its address, and takes everything down when stdin ends.

Run by runs/cluster.sh and by the tests as `python runs/ray_nodes.py NODES`; every node is a raylet of its own with one
CPU. With RAY_AUTH_MODE=token and RAY_AUTH_TOKEN in its environment it asks for that token.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

if __name__ == "__main__":
    # Short, since sockets lie in it.
    Path("/tmp/ray").mkdir(exist_ok=True)  # where Ray notes the head's address, and takes the folder for granted
    folder = tempfile.mkdtemp(prefix="ray-nodes-", dir="/tmp")
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False, "temp_dir": folder})
    try:
        for _ in range(int(sys.argv[1]) - 1):
            cluster.add_node(**node)
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
