"""On whose behalf a request is made: signatures, keys, and the kernel's word on the Unix socket."""
