"""Builds the wheel: the package, the libraries and the command line, as a zip file with the metadata of PEP 427. It needs nothing but Python.

    python3 wheel.py LIBRARY AGENT_LIBRARY COMMAND VERSION DIRECTORY
"""
import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile

MACHINES = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}


def tag(*libraries: str) -> str:
    """The platform of PEP 600: what the symbols of the libraries need of the C library."""
    header = subprocess.run(["readelf", "-h", libraries[0]], check=True, capture_output=True, text=True).stdout
    machine = MACHINES[re.search(r"Machine:\s+(.*)", header).group(1).strip()]
    symbols = "".join(subprocess.run(["readelf", "-V", l], check=True, capture_output=True, text=True).stdout for l in libraries)
    newest = max(tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+\.\d+)", symbols))
    return "manylinux_%d_%d_%s" % (*max(newest, (2, 17)), machine)


def build(library: str, agent: str, command: str, version: str, directory: str) -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    info = f"penstock-{version}.dist-info"
    platform = tag(library, agent)
    files = {}
    for name in sorted(os.listdir(os.path.join(here, "penstock"))):
        if name.endswith((".py", ".pyi", ".typed")):
            with open(os.path.join(here, "penstock", name), "rb") as f:
                files["penstock/" + name] = f.read(), 0o644
    for name, path in ("libpenstock.so", library), ("libpenstock-agent.so", agent):
        with open(path, "rb") as f:
            files["penstock/" + name] = f.read(), 0o755
    with open(command, "rb") as f:
        files[f"penstock-{version}.data/scripts/penstock"] = f.read(), 0o755
    files[info + "/METADATA"] = (f"Metadata-Version: 2.1\nName: penstock\nVersion: {version}\nRequires-Python: >=3.8\n"
                                 "Summary: Bytes between the memories of machines, and packets into memory\n").encode(), 0o644
    files[info + "/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: penstock\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n".encode(), 0o644
    record = ""
    for name, (data, _) in files.items():
        record += f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
    files[info + "/RECORD"] = (record + info + "/RECORD,,\n").encode(), 0o644
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"penstock-{version}-py3-none-{platform}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, (data, mode) in files.items():
            i = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            i.external_attr, i.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            z.writestr(i, data)
    return path


if __name__ == "__main__":
    print(build(*sys.argv[1:]))
