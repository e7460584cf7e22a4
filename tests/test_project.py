"""What stands beside the code: licence, pins, image, compose file and manifests
agree with the project.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
KUBERNETES = ROOT / "deployments" / "kubernetes"
IMAGE = "tokenlake-worker"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def example_variables() -> dict[str, str]:
    """What `.env.example` sets."""
    lines = (ROOT / ".env.example").read_text("utf-8").splitlines()
    return dict(
        line.split("=", 1) for line in lines if line and not line.startswith("#")
    )


def copied() -> list[list[str]]:
    """The sources of each COPY of the Dockerfile that takes files of the checkout."""
    lines = re.findall(
        r"^COPY (?!--from)(?:--\S+ )?(.+)$",
        (ROOT / "Dockerfile").read_text("utf-8"),
        re.MULTILINE,
    )
    return [line.split()[:-1] for line in lines]


def closure(names: set[tuple[str, str]]) -> Iterator[str]:
    """All packages that these (package, extra) need here, by what is installed."""
    seen: set[tuple[str, str]] = set()
    while names:
        name, extra = names.pop()
        seen.add((name, extra))
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue  # of another platform, or of an extra that is not installed
        yield name
        for line in map(Requirement, lines):
            if line.marker is None or line.marker.evaluate({"extra": extra}):
                names |= {
                    (canonicalize_name(line.name), each) for each in ["", *line.extras]
                } - seen


def test_every_package_of_the_extras_is_pinned_without_an_address():
    text = (ROOT / "constraints.txt").read_text("utf-8")
    assert "://" not in text and "@" not in text
    pins = {
        canonicalize_name(line.partition("==")[0])
        for line in text.splitlines()
        if "==" in line
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    needed = set(closure({("tokenlake", extra) for extra in ["", *extras]})) - {
        "tokenlake"
    }
    assert needed - pins - {"pip", "setuptools"} == set()


def test_the_wheel_of_what_the_image_copies_is_the_wheel_of_the_checkout(
    tmp_path: Path,
):
    """So nothing is missing in the Dockerfile; and manifests of clusters are in no
    wheel.
    """
    context = tmp_path / "context"
    for source in {source for line in copied() for source in line}:
        target = context / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(
                ROOT / source,
                target,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        else:
            shutil.copy(ROOT / source, target)
    names: list[set[str]] = []
    for folder, target in ((ROOT, tmp_path / "here"), (context, tmp_path / "there")):
        build = [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "-t",
            "wheel",
            "-d",
            str(target),
        ]
        subprocess.run(build, cwd=folder, check=True, capture_output=True)
        [wheel] = target.glob("*.whl")
        names.append(set(zipfile.ZipFile(wheel).namelist()))
    assert names[0] == names[1]
    assert any(name.endswith("licenses/LICENSE") for name in names[0])
    packages = {name.split("/")[0].split("-")[0] for name in names[0]}
    assert packages == {"tokenlake", "tokenlake_flows", "tokenlake_tasks"}
    assert {
        "tokenlake/py.typed",
        "tokenlake/config/__init__.pyi",
        "tokenlake/etl/runner.py",
        "tokenlake/runs/deployments/demo.yaml",
        "tokenlake_flows/tokenize.py",
        "tokenlake_tasks/plan.py",
    } <= names[0]
    assert not [name for name in names[0] if "kubernetes" in name]


def test_the_source_distribution_can_be_built_and_tested(tmp_path: Path):
    build = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "sdist",
        "-d",
        str(tmp_path),
    ]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    needed = {
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "flows/tokenlake_flows/tokenize.py",
        "tasks/tokenlake_tasks/plan.py",
        "deployments/demo.yaml",
        "prefect.yaml",
    }
    assert needed <= names
    assert not [
        name
        for name in names
        if name.startswith((".venv", "artifacts")) or name == ".env"
    ]


def test_docker_sees_every_file_that_the_image_copies():
    seen = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    assert {source.split("/")[0] for line in copied() for source in line} <= seen


def test_the_compose_file_uses_only_variables_of_the_example():
    text = (ROOT / "compose.yaml").read_text("utf-8")
    assert set(re.findall(r"\$\{(\w+)", text)) <= set(example_variables())
    services = yaml.safe_load(text)["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


def workloads() -> list[dict[str, Any]]:
    listed = documents(KUBERNETES / "kustomization.yaml")[0]["resources"]
    assert sorted(listed) == sorted(
        p.name for p in KUBERNETES.glob("*.yaml") if p.name != "kustomization.yaml"
    )
    found = [each for name in listed for each in documents(KUBERNETES / name)]
    return [each for each in found if "template" in each.get("spec", {})]


@pytest.mark.parametrize(
    "workload", workloads(), ids=lambda each: each["metadata"]["name"]
)
def test_a_workload_of_the_cluster_has_no_rights_and_knows_its_secrets(
    workload: dict[str, Any],
):
    pod = workload["spec"]["template"]
    if "selector" in workload["spec"]:
        assert workload["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    for container in pod["spec"]["containers"]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"requests", "limits"} <= set(container["resources"])
        for variable in container.get("env", []):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                assert (
                    reference["name"] == "secrets"
                    and reference["key"] in example_variables()
                )


def test_all_files_name_one_image_and_the_pool_of_the_deployments():
    images = {
        c["image"]
        for w in workloads()
        for c in w["spec"]["template"]["spec"]["containers"]
    }
    assert images == {IMAGE, "postgres:17"}
    [pool] = {
        d["work_pool"]["name"]
        for d in documents(ROOT / "prefect.yaml")[0]["deployments"]
    }
    for name in ("Dockerfile", "compose.yaml", "deployments/kubernetes/set-up.yaml"):
        text = (ROOT / name).read_text("utf-8")
        assert set(re.findall(r"(?:--pool\", \"|work-pool create )(\w+)", text)) == {
            pool
        }, name


def test_the_workflow_runs_what_the_checkout_runs():
    [workflow] = documents(ROOT / ".github" / "workflows" / "ci.yml")
    steps = workflow["jobs"]["check"]["steps"]
    assert ".ci/run" in [step.get("run") for step in steps]
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "classifiers"
    ]
    versions = workflow["jobs"]["check"]["strategy"]["matrix"]["python"]
    assert versions == [
        line.split(" :: ")[-1] for line in supported if re.search(r":: 3\.\d+$", line)
    ]
