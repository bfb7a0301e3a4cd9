"""The subcommands of `npu-lab`, one module each: `add(subparsers)` declares it and names the function that runs it."""
