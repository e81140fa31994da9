"""`load_model`: from a name, a hub id or a folder to a model that is ready to run."""

import ctypes
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from servelab.device import best_device, best_dtype
from servelab.model.catalog import DEFAULT_MODEL, MODELS, WHEELS, ModelUnavailable
from servelab.model.config import ModelConfig
from servelab.model.model import Model
from servelab.model.prepare import bar, prepare_model
from servelab.model.tokenizer import PretrainedTokenizer
from servelab.model.weights import load_network
from servelab.ops.backend import kernels_of_a_step
from servelab.translation import _

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
# Everything a model folder needs, and nothing that could run: no pickle, no Python.
PATTERNS = ["*.safetensors", "*.json", "*.jinja"]


def load_model(
    name_or_path: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    progress: bool = True,
) -> Model:
    """Load a model of `list_models()`, a Hugging Face hub id, or a local folder of safetensors.

    dtype: of weights and activations, by default the fast one of the device (float32 on most CPUs).
    device: by default the best one there is. progress: draw a bar while something is fetched or converted.
    Only safetensors (and the offline model's GGUF) are read, never a pickle, and no code of a model is run.

    Raises ModelUnavailable where files cannot be had, UnsupportedModel (a ValueError) for an architecture or
    option that the network does not have, ValueError for files that are missing, cut off or do not fit.
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise ValueError(f"expected a model's name, a hub id or a folder, got {name_or_path!r}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"expected dtype as torch.float32, torch.bfloat16 or torch.float16, got {dtype!r}")
    device = usable_device(device or best_device())
    name = os.fspath(name_or_path)
    folder = find_folder(name, progress)
    config = read_config(folder)
    network = load_network(folder, config, dtype or best_dtype(device.type), device)
    tokenizer = PretrainedTokenizer(folder, config.eos_token_ids)
    if network.head.form == "panels":
        compile_kernels(progress)
    return_freed_memory()
    return Model(name, config, network, tokenizer)


def compile_kernels(progress: bool) -> None:
    """Compile what each step runs, once a machine; later this finds it again. Else the first request would wait."""
    kernels = kernels_of_a_step()
    at_hand = all(kernel.is_kept for kernel in kernels)
    with bar(_("Compiling for this processor"), len(kernels), progress and not at_hand, unit=" kernels") as shown:
        for kernel in kernels:
            _address = kernel.address
            shown.update()


def return_freed_memory() -> None:
    """Give the system what was freed while loading: glibc would keep some 30 MB of it for the offline model."""
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def usable_device(device: str | torch.device) -> torch.device:
    """The device, when this machine can compute on it. Raises ValueError otherwise."""
    try:
        torch.ones(1, device=device).item()
        return torch.device(device)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"expected a device that this machine has, such as cpu, got {device!r} ({reason})") from None


def find_folder(name: str, progress: bool) -> Path:
    """The folder that holds the model: prepared, local, or fetched from the hub."""
    if name in WHEELS:
        return prepare_model(name, progress)
    path = Path(name)
    try:
        path = path.expanduser()
        is_dir, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError):  # longer than a path can be, or the home of a user who is not known
        is_dir = is_file = False
    if name and is_dir:
        return path
    if is_file:
        raise ValueError(f"expected a folder with config.json and safetensors, got the file {path}")
    if HUB_ID.fullmatch(name):
        return fetch_from_hub(name, progress)
    known = ", ".join(entry.name for entry in MODELS)
    raise ValueError(f"expected a model's name ({known}), a hub id or an existing folder, got {name!r:.100}")


def read_config(folder: Path) -> ModelConfig:
    """`config.json`, with the end tokens of `generation_config.json` where there is one."""
    values = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    if generation.exists():
        values = {**values, "eos_token_id": read_json(generation).get("eos_token_id", values.get("eos_token_id"))}
    return ModelConfig.from_hf(values)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ValueError when the file is missing or cut off."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"expected the file {path}, got no such file") from None
    except ValueError as error:
        raise ValueError(f"expected whole JSON in {path}, got: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object in {path}, got {type(values).__name__}")
    return values


def fetch_from_hub(name: str, progress: bool) -> Path:
    """The snapshot of a hub id: the local one without a network. The configuration is checked before the weights."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown_before = not are_progress_bars_disabled()
    if not progress:
        disable_progress_bars()
    try:
        ModelConfig.from_hf(read_json(Path(hf_hub_download(name, "config.json"))))
        return Path(snapshot_download(name, allow_patterns=PATTERNS, ignore_patterns=["*/*"]))
    except GatedRepoError:
        reason = _("its licence must be accepted on the hub first, then log in with `hf auth login`")
    except RepositoryNotFoundError:
        reason = _("the hub has no such model, or it is private")
    except LocalEntryNotFoundError:
        reason = _("the hub cannot be reached and no copy is on this machine")
    except ValueError:
        raise  # the configuration's own fault, which has its own sentence
    except Exception as error:  # whatever HTTP library this version of the hub's client uses
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    finally:
        if not progress and shown_before:
            enable_progress_bars()
    raise ModelUnavailable(
        _("Cannot fetch {name} from the hub: {reason}. The model {default} works offline.").format(
            name=name, reason=reason, default=DEFAULT_MODEL
        )
    )
