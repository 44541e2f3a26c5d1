"""The version tells the commit that a checkout, an archive or an installation comes from."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import ingestd
from ingestd import RELEASE, find_version

ROOT = Path(__file__).parents[2]


class Repository:
    """A checkout with one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "--quiet")
        self.commit()

    def git(self, *arguments: str) -> str:
        author = ["-c", "user.name=test", "-c", "user.email=test@shop.example"]
        done = subprocess.run(
            ["git", *author, *arguments], cwd=self.path, check=True, stdout=subprocess.PIPE, encoding="utf-8"
        )
        return done.stdout.strip()

    def commit(self) -> None:
        file = self.path / "file"
        file.write_text(f"{file.read_text() if file.exists() else ''}line\n")
        self.git("add", "file")
        self.git("commit", "--quiet", "--message", "change")

    @property
    def version(self) -> str:
        return find_version(self.path)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_before_the_first_tag_versions_rise_with_each_commit_and_are_below_the_release(repository: Repository) -> None:
    assert re.fullmatch(rf"{re.escape(RELEASE)}\.dev1\+g[0-9a-f]{{7,}}", repository.version)
    repository.commit()
    assert repository.version.startswith(f"{RELEASE}.dev2+g{repository.git('rev-parse', 'HEAD')[:7]}")


def test_a_tag_is_the_version_and_commits_behind_it_belong_to_the_next_one(repository: Repository) -> None:
    repository.git("tag", "v1.9.9")
    repository.git("tag", "a-tag-of-something-else")
    assert repository.version == "1.9.9"
    for _ in range(3):
        repository.commit()
    assert repository.version.startswith("1.9.10.dev3+g")
    repository.git("tag", "--annotate", "v1.10.0", "--message", "1.10.0")
    assert repository.version == "1.10.0"


def test_changed_files_are_told(repository: Repository) -> None:
    repository.git("tag", "v1.9.9")
    (repository.path / "file").write_text("changed")
    assert re.fullmatch(r"1\.9\.10\.dev0\+g\w+\.dirty", repository.version)
    (repository.path / "file").write_text("line\n")
    (repository.path / "new").touch()  # a build leaves files behind, and a tree may have notes
    assert repository.version == "1.9.9"


def test_a_shallow_clone_and_a_worktree_know_their_commit(repository: Repository, tmp_path: Path) -> None:
    repository.commit()
    commit = repository.git("rev-parse", "HEAD")[:7]
    repository.git("clone", "--quiet", "--depth", "1", f"file://{repository.path}", str(tmp_path / "shallow"))
    assert find_version(tmp_path / "shallow").startswith(f"{RELEASE}.dev1+g{commit}")
    repository.git("worktree", "add", "--quiet", "-b", "other", str(tmp_path / "worktree"))
    assert find_version(tmp_path / "worktree").startswith(f"{RELEASE}.dev2+g{commit}")


def test_a_folder_in_the_repository_of_another_project_has_not_its_version(repository: Repository) -> None:
    repository.git("tag", "v7.0.0")
    (repository.path / "ingestd").mkdir()
    assert find_version(repository.path / "ingestd") == f"{RELEASE}.dev0+unknown"


def test_a_hook_of_git_does_not_choose_the_repository(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository(tmp_path / "other")
    other.git("tag", "v7.0.0")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    assert repository.version.startswith(f"{RELEASE}.dev1+g")


@pytest.mark.parametrize(
    ("archived", "version"),
    [
        (" 1a2b3c4", f"{RELEASE}.dev0+g1a2b3c4"),
        ("v1.9.9 1a2b3c4", "1.9.9"),
        ("v1.9.9-3-g1a2b3c4 1a2b3c4", "1.9.10.dev3+g1a2b3c4"),
    ],
)
def test_an_archive_knows_its_version(
    archived: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestd, "_ARCHIVED", archived)
    assert find_version(tmp_path) == version


def test_git_archive_writes_tag_and_commit(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    (repository.path / "ingestd").mkdir()
    for name in ("ingestd/__init__.py", ".gitattributes"):
        (repository.path / name).write_text((ROOT / name).read_text())
        repository.git("add", name)
    repository.commit()
    repository.git("tag", "v1.9.9")
    commit = repository.git("rev-parse", "--short", "HEAD")
    assert f'_ARCHIVED = "v1.9.9 {commit}"' in repository.git("archive", "HEAD", "ingestd/__init__.py")
