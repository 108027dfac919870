"""Test the checks of certificates, and the contexts that are made of them."""

from __future__ import annotations

import os
import stat
import time
from datetime import timedelta
from pathlib import Path

import pytest

from queryable_app.platform.certificates import (
    CertificateError,
    check_name,
    client_context,
    expiry,
    read_certificate_files,
    server_context,
)
from tests.support.certificates import CertificateAuthority, mount

DAY = timedelta(days=1)


def test_expiry_is_that_of_the_leaf(tmp_path: Path) -> None:
    """The time of a chain is when its first certificate expires."""
    ca = CertificateAuthority()
    leaf, key = ca.sign(ends_in=3 * DAY)
    files = read_certificate_files(mount(tmp_path, ca.pem, leaf + ca.pem, key))
    assert abs(expiry(files) - time.time() - 3 * 86_400) < 60


def test_check_name_names_what_is_wrong(tmp_path: Path) -> None:
    """A certificate for another host, and one of another CA, are refused with OpenSSL's reason."""
    ca, other = CertificateAuthority(), CertificateAuthority("others")
    good = read_certificate_files(mount(tmp_path / "a", ca.pem, *ca.sign()))
    check_name(good, "127.0.0.1")
    with pytest.raises(CertificateError, match=r"tls\.crt is refused: .*127\.0\.0\.2"):
        check_name(good, "127.0.0.2")
    foreign = read_certificate_files(mount(tmp_path / "b", other.pem, *ca.sign()))
    with pytest.raises(CertificateError, match=r"tls\.crt is refused: .*issuer"):
        check_name(foreign, "127.0.0.1")


def test_missing_files_are_named(tmp_path: Path) -> None:
    """A Secret without a key is refused by the name of the file, and one without ca.crt is not."""
    ca = CertificateAuthority()
    mount(tmp_path, None, *ca.sign())
    assert read_certificate_files(tmp_path).ca == b""
    (tmp_path / "tls.key").unlink()
    with pytest.raises(CertificateError, match=r"tls\.key cannot be read"):
        read_certificate_files(tmp_path)


def test_large_files_are_refused(tmp_path: Path) -> None:
    """A file above a Secret's size is not read to its end."""
    mount(tmp_path, None, b"x" * (1 << 21), b"")
    with pytest.raises(CertificateError, match=r"tls\.crt is larger than"):
        read_certificate_files(tmp_path)


def test_a_key_with_a_password_is_refused(tmp_path: Path) -> None:
    """OpenSSL prompts for no password, which would wait for ever."""
    encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n"
    files = read_certificate_files(mount(tmp_path, None, CertificateAuthority().sign()[0], encrypted))
    with pytest.raises(CertificateError, match=r"the key has a password"):
        expiry(files)


def test_client_auth_needs_a_ca(tmp_path: Path) -> None:
    """`clientAuth` without ca.crt is refused: no certificate of a client could be verified."""
    files = read_certificate_files(mount(tmp_path, None, *CertificateAuthority().sign()))
    with pytest.raises(CertificateError, match=r"ca\.crt is missing; spec\.tls\.clientAuth require"):
        server_context(files, "require")


def test_no_message_shows_a_key(tmp_path: Path) -> None:
    """Neither the text of the files nor a message about them has their content."""
    ca = CertificateAuthority()
    key = ca.sign()[1]
    files = read_certificate_files(mount(tmp_path, ca.pem, ca.sign()[0], key))
    secret = key.decode().splitlines()[1]
    with pytest.raises(CertificateError) as refused:
        expiry(files)
    assert secret not in f"{refused.value!r} {files!r}"


def test_no_descriptor_and_no_file_is_left(tmp_path: Path) -> None:
    """Loading a key leaves nothing open, and writes nothing to the disk."""
    ca = CertificateAuthority()
    files = read_certificate_files(mount(tmp_path, ca.pem, *ca.sign()))
    before = set(os.listdir("/proc/self/fd"))
    server_context(files)
    client_context(files.ca, files)
    assert len(os.listdir("/proc/self/fd")) <= len(before)
    assert all(stat.S_ISLNK(p.lstat().st_mode) or p.is_dir() for p in tmp_path.iterdir())
