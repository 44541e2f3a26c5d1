"""Takes on the identity of the files' owner. Files that root makes would be unusable for the daemon.

Only root may reach the files: systemd keeps the folders of dynamic users below /var/lib/private, which other users
cannot enter. There the process keeps one capability of root, to search folders and read. It writes as the owner.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
from pathlib import Path

__all__ = ["take_identity"]

_KEEP_CAPABILITIES = 8  # PR_SET_KEEPCAPS of prctl(2)
_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3 of capset(2)
_READ_AND_SEARCH = 1 << 2  # CAP_DAC_READ_SEARCH


def take_identity(path: Path) -> None:
    """As root, become the owner of the file, or of the folder it will be in."""
    if os.geteuid() != 0:
        return
    owner = next((each.stat() for each in (path, path.parent) if each.exists()), None)
    if owner is None or owner.st_uid == 0:
        return
    try:
        groups = os.getgrouplist(pwd.getpwuid(owner.st_uid).pw_name, owner.st_gid)
    except KeyError:  # an owner without a name has no further groups
        groups = [owner.st_gid]
    os.setgroups(groups)
    os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
    os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)
    libc.prctl(_KEEP_CAPABILITIES, 0, 0, 0, 0)
    reached = os.access(path.parent, os.X_OK)
    with contextlib.suppress(OSError):  # this container's root may lack it; then opening the file fails
        _keep(libc, 0 if reached else _READ_AND_SEARCH)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _keep(libc: ctypes.CDLL, capabilities: int) -> None:
    """Keep only these capabilities in this thread. Threads that it starts inherit them."""
    sets = (_Sets * 2)(_Sets(capabilities, capabilities, 0), _Sets(0, 0, 0))
    if libc.capset(ctypes.byref(_Header(_VERSION, 0)), sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")
