"""The npm package, built by web/build."""

from project import ROOT, put, run, version


def package(name):
    run("web/build")
    return put(f"{name}.tgz", (ROOT / "web" / "dist" / f"sterna-{version()}.tgz").read_bytes())
