"""An owner of a managed replica, to be ended from outside: ``owner.py LOG [STAND_IN_MODE]``."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from harness.replica import process
from harness.replica.process import Device, ReplicaSpec, managed_replica


async def main() -> None:
    spec = ReplicaSpec(plugin=False, arguments=tuple(f"--stand-in={mode}" for mode in sys.argv[2:]))
    async with managed_replica(spec, Path(sys.argv[1]), print) as replica:
        print(replica.url, flush=True)
        await anyio.sleep_forever()


process.installed_device = lambda: Device.CPU  # whatever is installed, it starts the stand-in

if __name__ == "__main__":
    anyio.run(main, backend_options={"use_uvloop": True})
