"""Names the machine that a number was measured on."""


def machine() -> str:
    """Return one line: the GPU, or the processor and its cores, and the dtype that runs here."""
    from servelab.device import best_device, best_dtype, machine_name

    return f"{machine_name()}, {str(best_dtype(best_device())).removeprefix('torch.')}"
