"""What `make dist` builds: each artefact is installed without a network in a root of its own, and runs there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from string import Template

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from scripts.dist import make_deb
from tests.support.own_root import OwnRoot

ROOT = Path(__file__).parents[2]
BASE = "http://127.0.0.1:8080/api/v1/analytics"
CREATE_KEY = ("keys", "create", "--kind", "public", "--tenant", "shop", "--json")
OPERATORS = "http://127.0.0.1:9464"


@pytest.fixture(scope="module")
def built(source: Path) -> Path:
    """A copy of this tree at the tag of a release, with its `dist`."""
    for step in ("init", "add .", "-c user.name=t -c user.email=t@shop.example commit -m release", "tag v9.8.7"):
        subprocess.run(["git", *step.split()], cwd=source, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "scripts.dist", "--extras", "bots"], cwd=source, check=True)
    return source


@pytest.fixture
def root(tmp_path: Path) -> Iterator[OwnRoot]:
    with OwnRoot(tmp_path) as made:
        yield made


@contextmanager
def serving(root: OwnRoot, *command: str, user: str = "", folder: str = "/") -> Iterator[None]:
    process = root.start(*command, user=user, folder=folder)
    try:
        root.run("curl", "--silent", "--fail", "--retry", "200", "--retry-delay", "0", "--retry-max-time", "20",
                 "--retry-connrefused", f"{OPERATORS}/readyz")  # fmt: skip
        yield
    finally:
        root.terminate(process)


EVENT = json.dumps({"key": "Page View", "anonymousId": "v", "data": {}})


def send(root: OwnRoot, key: str, path: str, body: str) -> str:
    return root.run("curl", "--silent", "--fail", f"{BASE}{path}", "-H", f"authorization: Bearer {key}", "-d", body)


def store_event(root: OwnRoot, key: str) -> None:
    send(root, key, "/track", EVENT)


def store_event_beside_a_spoilt_one(root: OwnRoot, key: str) -> None:
    """Debian's Python is older than most others, and its regular expressions have faults that were mended later."""
    answer = send(root, key, "/batch", '{"events": [{"key": "\\ud800"}, ' + EVENT + "]}")
    assert [result["status"] for result in json.loads(answer)["results"]] == [400, 200]


def test_every_artefact_is_there(built: Path) -> None:
    architecture = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True)
    assert {path.name for path in (built / "dist").iterdir()} == {
        "ingestd-9.8.7.tar.gz", "ingestd-9.8.7-py3-none-any.whl", "wheelhouse", "ingestd-9.8.7.cdx.json",
        f"ingestd_9.8.7_{architecture.stdout.strip()}.deb",
    }  # fmt: skip


def test_the_sbom_names_every_distribution_of_the_wheelhouse_and_the_package(built: Path) -> None:
    text = (built / "dist" / "ingestd-9.8.7.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert document["metadata"]["component"]["name"] == "ingestd"
    named = {(each["name"], each["version"]) for each in [*document["components"], document["metadata"]["component"]]}
    packaged = next((built / "build" / "deb").glob("usr/lib/ingestd/lib/*/site-packages"))
    installed = {(each.name, each.version) for each in distributions(path=[str(packaged)])}
    assert named == installed
    wheels = {tuple(wheel.name.split("-")[:2]) for wheel in (built / "dist" / "wheelhouse").iterdir()}
    assert {(re.sub("[-_.]+", "_", name).lower(), version) for name, version in named} == {
        (name.lower(), version) for name, version in wheels
    }


def test_the_package_is_installed_run_upgraded_and_purged(built: Path, root: OwnRoot) -> None:
    before = root.changed()
    old = next((built / "dist").glob("*.deb"))
    root.copy(old, "/root/old.deb")
    root.run("dpkg", "--install", "/root/old.deb")
    assert root.run("ingestd", "--version") == "ingestd 9.8.7"
    assert root.run("man", "-w", "ingestd-serve") == "/usr/share/man/man1/ingestd-serve.1.gz"
    units = ["ingestd.service", "ingestd.socket", "ingestd-ops.socket", "ingestd@1.service", "ingestd@1.socket"]
    root.run("systemd-analyze", "verify", *(f"/lib/systemd/system/{unit}" for unit in units))
    for shell, file in (("bash", "bash-completion/completions/ingestd"), ("zsh", "zsh/vendor-completions/_ingestd")):
        assert root.run("ingestd", "completion", shell) == root.run("cat", f"/usr/share/{file}")

    # As under the units, which make this folder.
    root.run("mkdir", "--parents", "/var/lib/ingestd/main", "/etc/ingestd/credentials")
    key = json.loads(root.run("ingestd", *CREATE_KEY))["id"]
    with serving(root, "ingestd", "serve"):
        store_event_beside_a_spoilt_one(root, key)
    root.run("sh", "-c", "echo '# mine' >> /etc/ingestd/ingestd.toml; systemctl enable ingestd.service")

    shipped = built / "packaging" / "deb" / "ingestd.toml"
    shipped.write_text(shipped.read_text() + "# newer\n")
    root.copy(make_deb(built, "9.8.8.dev1+g1234567"), "/root/new.deb")
    root.run("dpkg", "--install", "--force-confold", "/root/new.deb")
    assert root.run("dpkg-query", "--show", "--showformat", "${Version}", "ingestd") == "9.8.8~dev1+g1234567"
    assert root.run("tail", "-1", "/etc/ingestd/ingestd.toml") == "# mine"
    with serving(root, "ingestd", "serve"):
        store_event(root, key)
    assert len(root.run("ingestd", "events", "export", "--type", "event").splitlines()) == 2

    root.run("dpkg", "--remove", "ingestd")
    assert root.run("tail", "-1", "/etc/ingestd/ingestd.toml") == "# mine"
    # Another installation, by install-units, reads the same configuration.
    root.run("touch", "/etc/systemd/system/ingestd.service")
    root.run("/var/lib/dpkg/info/ingestd.postrm", "purge")
    root.run("rm", "/etc/systemd/system/ingestd.service")
    assert root.run("tail", "-1", "/etc/ingestd/ingestd.toml") == "# mine"
    root.run("dpkg", "--purge", "ingestd")
    left = {name for name in root.changed() - before if not name.startswith("/var/lib/ingestd/main/ingestd.db")}
    assert left == set()
    assert root.run("sh", "-c", "ls -d /usr/lib/ingestd /etc/ingestd /usr/share/ingestd 2>/dev/null || true") == ""
    root.run("test", "-s", "/var/lib/ingestd/main/ingestd.db")


@pytest.mark.long
def test_under_systemd_an_upgrade_restarts_the_daemon_and_loses_no_request(built: Path, root: OwnRoot) -> None:
    """The Debian of this machine boots in `systemd-nspawn`, and runs UNDER_SYSTEMD."""
    root.copy(built / "dist" / "ingestd_9.8.7_amd64.deb", "/root/old.deb")
    root.copy(make_deb(built, "9.8.8"), "/root/new.deb")
    units = "/etc/systemd/system"
    service = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'sh -eux /root/checks.sh >/root/result 2>&1'\n"
    root.write("/root/checks.sh", UNDER_SYSTEMD)
    root.write(f"{units}/checks.service", f"[Unit]\nSuccessAction=poweroff\nFailureAction=poweroff\n{service}")
    # Nothing else of this machine starts.
    root.run("sh", "-c", f"rm -rf {units}/*.wants /usr/sbin/policy-rc.d; mkdir {units}/multi-user.target.wants")
    root.run("ln", "-s", "../checks.service", f"{units}/multi-user.target.wants/")
    root.run("ln", "-sf", "/lib/systemd/system/multi-user.target", f"{units}/default.target")
    root.boot()
    printed = root.run("cat", "/root/result")
    assert printed.endswith("all checks passed"), printed


UNDER_SYSTEMD = """
dpkg --install /root/old.deb
systemctl enable --now ingestd.service
curl --silent --fail http://127.0.0.1:9464/readyz
key=$(ingestd keys create --kind public --tenant shop --json | grep -o 'pk_[^"]*')
send() {
    curl --silent --max-time 20 --write-out '%{http_code}\\n' --output /dev/null \\
        http://127.0.0.1:8080/api/v1/analytics/track -H "authorization: Bearer $key" \\
        -d '{"key": "Page View", "anonymousId": "v", "data": {}}'
}
until send >/root/answers && grep 200 /root/answers; do sleep 0.1; done  # the daemon learns of the key
set +x
while [ ! -e /root/enough ]; do send; done >>/root/answers & sender=$!
set -x
first=$(systemctl show --property MainPID --value ingestd.service)
dpkg --install /root/new.deb
second=$(systemctl show --property MainPID --value ingestd.service)
[ "$first" != "$second" ]
systemctl is-active ingestd.service
touch /root/enough
wait $sender
[ "$(sort -u /root/answers)" = 200 ]
[ "$(ingestd events export --type event | wc -l)" = "$(wc -l </root/answers)" ]
install -D -m 644 -t /etc/systemd/system/ingestd.service.d /usr/share/ingestd/outgoing.conf
dpkg --remove ingestd
[ "$(systemctl is-active ingestd.socket ingestd-ops.socket ingestd.service | sort -u)" = inactive ]
dpkg --purge ingestd
[ -z "$(find /etc /usr -xdev -name '*ingestd*')" ]
echo all checks passed
"""


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Containerfile").read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


class Image:
    """A root in which the instructions of a stage of the Containerfile are executed, as a builder of images does."""

    def __init__(self, root: OwnRoot, context: Path) -> None:
        self.root, self.context = root, context
        self.settings: dict[str, str] = {}

    def follow(self, name: str, rest: str, stages: dict[str, OwnRoot]) -> None:
        match name:
            case "COPY" if rest.startswith("--from="):
                stage, source, target = rest.removeprefix("--from=").split()
                assert source == target
                packed = stages[stage].command("tar", "--create", source.lstrip("/"))
                with subprocess.Popen(packed, stdout=subprocess.PIPE) as pipe:
                    subprocess.run(self.root.command("tar", "--extract"), stdin=pipe.stdout, check=True)
            case "COPY":
                source, target = rest.split()
                self.root.copy(self.context / source, target)
            case "RUN":
                self.root.run("sh", "-c", rest)
            case "ENV" | "ARG":
                told = Template(rest).substitute(self.root.environment)
                self.root.environment |= dict(each.split("=", 1) for each in shlex.split(told))
            case _:
                self.settings[name] = rest


def test_the_container_runs_as_nobody_with_a_root_that_is_read_only(built: Path, tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "image").mkdir()
    with OwnRoot(tmp_path / "environment") as environment, OwnRoot(tmp_path / "image") as final:
        stages = {"environment": environment, "": final}
        for name, rest in instructions():
            if name == "FROM":
                image = Image(stages[rest.partition(" AS ")[2]], built)
            elif name == "ARG":
                image.follow(name, "EXTRAS=bots", stages)
            else:
                image.follow(name, rest, stages)
        settings = image.settings
        final.run("mount", "--bind", "/var/lib/ingestd", "/var/lib/ingestd")
        final.run("mount", "-o", "remount,bind,ro", "/")
        user, folder = settings["USER"].partition(":")[0], settings["WORKDIR"]
        probe = json.loads(settings["HEALTHCHECK"].partition(" CMD ")[2])
        command = [*json.loads(settings["ENTRYPOINT"]), *json.loads(settings["CMD"])]
        ingestd = command[0]
        key = final.run(ingestd, *CREATE_KEY, user=user, folder=folder)
        with serving(final, *command, user=user, folder=folder):
            store_event(final, json.loads(key)["id"])
            final.run(*probe, user=user)
        assert json.loads(final.run(ingestd, "events", "export", user=user, folder=folder))["key"] == "Page View"
        with pytest.raises(AssertionError, match="Read-only file system"):
            final.run("touch", "/opt/ingestd/touched")


def test_the_compose_file_follows_its_schema_and_its_files_are_there() -> None:
    # In this process, because a new one would import a library that takes a second for a grammar.
    from check_jsonschema import main as check  # type: ignore[import-untyped]

    words = ["--quiet", "--builtin-schema", "vendor.compose-spec", str(ROOT / "compose.yaml")]
    assert check(words, standalone_mode=False) == 0
    text = (ROOT / "compose.yaml").read_text()
    mounted = re.findall(r"- (\./\S+?):/(\S+?):ro", text)
    assert len(mounted) == 7
    for source, _ in mounted:
        assert (ROOT / source).is_file()


def test_the_prometheus_of_the_compose_file_has_the_shipped_rules(tmp_path: Path) -> None:
    """All files of its service, at their places in the container."""
    for source, target in re.findall(r"- (\./\S+?):/etc/prometheus/(\S+?):ro", (ROOT / "compose.yaml").read_text()):
        (tmp_path / target).write_bytes((ROOT / source).read_bytes())
    promtool = Path(sys.executable).with_name("promtool")
    checked = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"], check=False, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count("rules found") == 2
